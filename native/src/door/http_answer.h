// The head of an answer, as the Python way's layers write it together. Knows no Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace headway::door {

// What an answer with status 200 says of itself.
struct AnswerHead {
    std::string_view date;  // as http_date() has it
    std::string_view content_type;
    size_t content_length = 0;
    std::optional<size_t> json_length;  // of a body with binary data behind its JSON
    std::string_view request_id;
    bool closes = false;  // the connection, behind the body
};

// Appends it, the empty line too.
void append_answer_head(const AnswerHead& head, std::string& out);

// RFC 9110, 5.6.7: Sun, 06 Nov 1994 08:49:37 GMT.
std::string http_date(int64_t unix_seconds);

}  // namespace headway::door
