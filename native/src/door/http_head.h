// The plain request's head: a strict subset of HTTP/1.1 (RFC 9112) of which nothing can be read in two ways.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace headway::door {

constexpr size_t kMaxHeadBytes = 8 * 1024;

enum class HeadState {
    plain,    // it is whole
    partial,  // what is here of it is plain
    other,    // not ours, and will not be
};

// Views are into the data. Empty: there is no such header.
struct RequestHead {
    std::string_view target;      // as it came; it begins with a slash
    std::string_view host;        // as it came
    std::string_view api_key;     // of Authorization: Bearer, else of X-Api-Key, as server/keys has it
    bool has_api_key = false;     // it may be the empty one
    std::string_view request_id;  // only one that server/middleware takes over
    size_t head_bytes = 0;        // the empty line included
    size_t content_length = 0;
    std::optional<size_t> json_length;  // Inference-Header-Content-Length
};

// POST with an origin-form target, CRLF, and each header at most once of those that anybody looks at. `other` for
// whatever has a meaning that is not handled: another method or version, chunks, another coding, Expect, Upgrade, Origin,
// Connection but keep-alive, forms, folded lines, white space where none belongs, bytes over 0x7E.
HeadState read_head(std::string_view data, RequestHead& head);

// Every header that has a meaning to the server, in lower case: what is handled, and what is left to the Python way.
// Others are passed over.
inline constexpr std::array kHandledHeaders = {
    std::string_view("host"),         std::string_view("content-length"), std::string_view("content-type"),
    std::string_view("connection"),   std::string_view("authorization"),  std::string_view("x-api-key"),
    std::string_view("x-request-id"), std::string_view("inference-header-content-length"),
};
inline constexpr std::array kOtherHeaders = {
    std::string_view("transfer-encoding"), std::string_view("content-encoding"), std::string_view("expect"),
    std::string_view("upgrade"),           std::string_view("origin"),           std::string_view("proxy-connection"),
    std::string_view("anthropic-version"),
};

}  // namespace headway::door
