#include "door/http_head.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>

namespace headway::door {
namespace {

constexpr std::string_view kMethod = "POST ";
constexpr std::string_view kVersion = " HTTP/1.1";
constexpr size_t kMaxRequestId = 64;

// Of a header's name (RFC 9110, 5.6.2): the letter in lower case, 0 for what no token has.
constexpr std::array<char, 256> kNameLetters = [] {
    std::array<char, 256> letters{};
    for (const char one : std::string_view("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")) {
        letters[static_cast<uint8_t>(one)] = one;
    }
    for (char one = 'A'; one <= 'Z'; ++one) letters[static_cast<uint8_t>(one)] = static_cast<char>(one - 'A' + 'a');
    return letters;
}();

char lower(char one) { return one >= 'A' && one <= 'Z' ? static_cast<char>(one - 'A' + 'a') : one; }

// `small` is in lower case.
bool is_same(std::string_view text, std::string_view small) {
    return text.size() == small.size() &&
           std::equal(text.begin(), text.end(), small.begin(), [](char a, char b) { return lower(a) == b; });
}

bool is_printable(char one) { return one >= 0x20 && one <= 0x7E; }

bool is_target(std::string_view text) {
    return text.starts_with('/') &&
           std::all_of(text.begin(), text.end(), [](char one) { return one > 0x20 && one <= 0x7E; });
}

bool is_name(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(),
                                        [](char one) { return kNameLetters[static_cast<uint8_t>(one)] != 0; });
}

bool is_request_id(std::string_view text) {
    return !text.empty() && text.size() <= kMaxRequestId && std::all_of(text.begin(), text.end(), [](char one) {
        const char small = lower(one);
        return (small >= 'a' && small <= 'z') || (one >= '0' && one <= '9') || one == '.' || one == '_' || one == ':' ||
               one == '-';
    });
}

// Digits alone, without a zero before them.
bool read_size(std::string_view text, size_t& size) {
    if (text.empty() || text.size() > 15 || (text.size() > 1 && text[0] == '0')) return false;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    return error == std::errc() && end == text.data() + text.size() && text[0] != '-';
}

enum Header : size_t { kHost, kContentLength, kContentType, kConnection, kAuthorization, kApiKey, kRequestId, kJsonLength };
static_assert(kHandledHeaders[kJsonLength] == "inference-header-content-length" && kHandledHeaders[kHost] == "host");

struct Headers {
    std::array<std::optional<std::string_view>, kHandledHeaders.size()> values;

    // False: it is none of a plain request.
    bool add(std::string_view name, std::string_view value) {
        for (size_t i = 0; i < kHandledHeaders.size(); ++i) {
            if (is_same(name, kHandledHeaders[i])) {
                if (values[i] || value.empty()) return false;
                values[i] = value;
                return true;
            }
        }
        return std::none_of(kOtherHeaders.begin(), kOtherHeaders.end(),
                            [name](std::string_view other) { return is_same(name, other); });
    }
};

bool read_request_line(std::string_view line, RequestHead& head) {
    if (!line.starts_with(kMethod) || !line.ends_with(kVersion)) return false;
    if (line.size() < kMethod.size() + kVersion.size()) return false;
    head.target = line.substr(kMethod.size(), line.size() - kMethod.size() - kVersion.size());
    return is_target(head.target);
}

bool read_header(std::string_view line, Headers& headers) {
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_name(line.substr(0, colon))) return false;
    std::string_view value = line.substr(colon + 1);
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (value.starts_with(' ') || value.ends_with(' ')) return false;
    return std::all_of(value.begin(), value.end(), is_printable) && headers.add(line.substr(0, colon), value);
}

// "Bearer KEY" -> KEY. False: it is of another scheme, which is no key; then nothing is told.
bool read_bearer(std::string_view value, std::string_view& key) {
    constexpr std::string_view scheme = "bearer";
    if (value.size() < scheme.size() || !is_same(value.substr(0, scheme.size()), scheme)) return false;
    value.remove_prefix(scheme.size());
    if (!value.empty() && value[0] != ' ') return false;
    while (value.starts_with(' ')) value.remove_prefix(1);
    key = value;
    return true;
}

bool read_headers(const Headers& headers, RequestHead& head) {
    const auto& values = headers.values;
    if (!values[kHost] || !values[kContentLength] || !read_size(*values[kContentLength], head.content_length)) return false;
    head.host = *values[kHost];
    if (values[kConnection] && !is_same(*values[kConnection], "keep-alive")) return false;
    if (values[kContentType] && is_same(values[kContentType]->substr(0, 9), "multipart")) return false;
    if (values[kAuthorization]) {
        head.has_api_key = read_bearer(*values[kAuthorization], head.api_key);
    } else if (values[kApiKey]) {
        head.has_api_key = true;
        head.api_key = *values[kApiKey];
    }
    if (values[kRequestId] && is_request_id(*values[kRequestId])) head.request_id = *values[kRequestId];
    if (values[kJsonLength]) {
        size_t length = 0;
        if (!read_size(*values[kJsonLength], length)) return false;
        head.json_length = length;
    }
    return true;
}

// What has come of a line without its end: could it become one of a plain head?
HeadState judge_cut(std::string_view data, std::string_view rest, bool is_first) {
    if (data.size() >= kMaxHeadBytes) return HeadState::other;
    if (is_first) {
        const size_t size = std::min(rest.size(), kMethod.size());
        return rest.substr(0, size) == kMethod.substr(0, size) ? HeadState::partial : HeadState::other;
    }
    return HeadState::partial;
}

}  // namespace

HeadState read_head(std::string_view data, RequestHead& head) {
    head = {};
    Headers headers;
    size_t place = 0;
    for (bool is_first = true;; is_first = false) {
        const std::string_view rest = data.substr(place);
        const size_t size = rest.find('\n');
        if (size == std::string_view::npos) return judge_cut(data, rest, is_first);
        if (size == 0 || rest[size - 1] != '\r') return HeadState::other;
        const std::string_view line = rest.substr(0, size - 1);
        place += size + 1;
        if (place > kMaxHeadBytes) return HeadState::other;
        if (is_first) {
            if (!read_request_line(line, head)) return HeadState::other;
        } else if (line.empty()) {
            head.head_bytes = place;
            return read_headers(headers, head) ? HeadState::plain : HeadState::other;
        } else if (!read_header(line, headers)) {
            return HeadState::other;
        }
    }
}

}  // namespace headway::door
