// A streamed token's way without Python: UTF-8 in pieces, JSON strings, chunks, and the bytes of a Step, whole, cut short
// and spoilt. Right values are written out by hand; tests/native/test_streams.py has Python's own decoders for more.

#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "stream/plain_text.h"
#include "stream/step_message.h"
#include "stream/token_times.h"

namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;

void test_characters_are_given_when_they_are_whole() {
    struct Case {
        std::vector<std::string_view> pieces;
        std::string_view text, held;
    };
    const std::vector<Case> cases = {
        {{"\xF0\x9F", "\x91\x8B"}, "\xF0\x9F\x91\x8B", ""},
        {{"\xF0", "\x9F", "\x91", "\x8B!"}, "\xF0\x9F\x91\x8B!", ""},
        {{"a\xF0\x9F\x91"}, "a", "\xF0\x9F\x91"},
        {{"\xE2\x80", "a"}, "\xEF\xBF\xBD" "a", ""},          // cut short: one U+FFFD
        {{"\xED\xA0\x80"}, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", ""},  // a surrogate is three
        {{"\xED\xA0"}, "", "\xED\xA0"},  // as Python's decoder
        {{"\xF4\x90"}, "\xEF\xBF\xBD\xEF\xBF\xBD", ""},       // beyond U+10FFFF
        {{"\xC0\xAF"}, "\xEF\xBF\xBD\xEF\xBF\xBD", ""},       // overlong
        {{"\xFF", "a"}, "\xEF\xBF\xBD" "a", ""},
        {{""}, "", ""},
    };
    for (const Case& one : cases) {
        headway::Utf8Pieces decoder;
        std::string text;
        for (const std::string_view piece : one.pieces) decoder.push(piece, text);
        CHECK(text == one.text && decoder.held() == one.held, "%s", text.c_str());
    }
}

void test_strings_and_chunks_are_what_the_standards_say() {
    std::string json;
    headway::append_json_string("a\"\\\x01\x1F\b\t\n\f\r/\x7F\xC3\xA9"sv, json);
    CHECK(json == "\"a\\\"\\\\\\u0001\\u001f\\b\\t\\n\\f\\r/\x7F\xC3\xA9\"", "%s", json.c_str());
    std::string chunk;
    headway::append_chunk({"ab", std::string(24, 'x')}, chunk);
    CHECK(chunk == "1a\r\nab" + std::string(24, 'x') + "\r\n", "%s", chunk.c_str());
}

void test_a_token_is_asked_for_until_it_is_known() {
    int num_asked = 0;
    headway::TokenSpelling spelling(3, [&](int64_t id) -> std::optional<std::string> {
        ++num_asked;
        if (num_asked == 1) return std::nullopt;
        return std::string(static_cast<size_t>(id), 'x');
    });
    spelling.set_special(2);
    spelling.set_special(7);
    CHECK(!spelling.bytes_of(1), "it was not told");
    for (int i = 0; i < 2; ++i) CHECK(spelling.bytes_of(1) == "x"sv && spelling.bytes_of(2) == "xx"sv, "%d", num_asked);
    CHECK(spelling.bytes_of(0) == ""sv && spelling.bytes_of(3) == ""sv && spelling.bytes_of(-1) == ""sv, "outside");
    CHECK(num_asked == 4, "%d", num_asked);
    CHECK(spelling.is_special(2) && !spelling.is_special(1) && !spelling.is_special(7), "special");
}

// {"type": "step", "events": [...], "num_running": 3}: one plain event, then one with an end.
const std::string kPlain = "\x99\xA1r\x00\x92\x01\xCD\x01\x00\xC0\xC0\xC0\x05\xC0\x02"s;
const std::string kEnd = "\x99\xA1s\x00\x91\x07\xC0\xA4stop\xC0\x00\xC0\x00"s;
const std::string kBefore = "\x83\xA4type\xA4step\xA6" "events"s, kAfter = "\xABnum_running\x03"s;

void test_a_step_is_read_and_written_without_some_of_its_events() {
    headway::StepMessage step;
    const std::string message = kBefore + "\x92" + kPlain + kEnd + kAfter;
    CHECK(step.read(message), "a Step");
    CHECK(step.events.size() == 2, "%zu", step.events.size());
    const headway::StepEvent &plain = step.events[0], &end = step.events[1];
    CHECK(plain.is_plain && plain.request_id == "r" && plain.num_ids == 2 && plain.num_forced == 2, "plain");
    CHECK(step.token_ids[plain.first_id] == 1 && step.token_ids[plain.first_id + 1] == 256, "its ids");
    CHECK(!end.is_plain && end.request_id == "s" && end.bytes == kEnd, "the other");
    CHECK(step.with_events({1}) == kBefore + "\x91" + kEnd + kAfter, "one of two");
    CHECK(step.with_events({}) == kBefore + "\x90" + kAfter, "none");
    CHECK(!step.read("\x81\xA4type\xA5stats"s), "another message");
    CHECK(!step.read(kBefore + "\x91" + kPlain + kAfter + "\x00"s), "something behind it");
}

void test_what_is_cut_or_spoilt_is_no_step_or_a_whole_one() {
    const std::string whole = kBefore + "\x92" + kPlain + kEnd + kAfter;
    headway::StepMessage step;
    for (size_t size = 0; size < whole.size(); ++size) {
        const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));  // no byte behind it
        CHECK(!step.read({cut.data(), cut.size()}), "%zu bytes", size);
    }
    std::mt19937 random(5);
    for (int round = 0; round < 20000; ++round) {
        std::vector<char> spoilt(whole.begin(), whole.end());
        for (int i = 0; i < 1 + round % 3; ++i) spoilt[random() % spoilt.size()] = static_cast<char>(random());
        if (!step.read({spoilt.data(), spoilt.size()})) continue;
        std::vector<size_t> all;
        for (size_t i = 0; i < step.events.size(); ++i) {
            const headway::StepEvent& event = step.events[i];
            CHECK(!event.is_plain || event.first_id + event.num_ids <= step.token_ids.size(), "round %d", round);
            all.push_back(i);
        }
        CHECK(step.with_events(all).size() <= spoilt.size(), "round %d", round);
    }
    const std::string deep(100000, '\x91');
    CHECK(!step.read(kBefore + deep), "a hundred thousand arrays in each other");
    CHECK(!step.read(kBefore + "\xDD\xFF\xFF\xFF\xFF"s), "four billion events that are not there");
}

void test_gaps_are_counted_in_their_buckets() {
    headway::HistogramCounts gaps({0.5, 1.0});
    headway::TokenTimes times{10.0, 10.0, 1};
    times.add(1, 10.5, gaps);
    times.add(2, 12.0, gaps);
    times.add(1, 14.0, gaps);
    CHECK((gaps.in_bucket() == std::vector<uint64_t>{1, 2, 1}), "buckets");
    CHECK(gaps.sum() == 4.0 && times.num_tokens == 5 && times.last_s == 14.0 && times.first_s == 10.0, "%f", gaps.sum());
}

}  // namespace

void headway_tests::test_stream() {
    test_characters_are_given_when_they_are_whole();
    test_strings_and_chunks_are_what_the_standards_say();
    test_a_token_is_asked_for_until_it_is_known();
    test_a_step_is_read_and_written_without_some_of_its_events();
    test_what_is_cut_or_spoilt_is_no_step_or_a_whole_one();
    test_gaps_are_counted_in_their_buckets();
}
