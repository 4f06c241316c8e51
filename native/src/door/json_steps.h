// Objects and lists of JSON, read step by step.
#pragma once

#include <string_view>

#include "door/json_reader.h"

namespace headway::door {

// Calls `read` for each key, with the reader behind its colon; keys have no escapes. False: it is no object, or `read`
// says so.
template <typename Read>
bool read_object(JsonReader& reader, const Read& read) {
    bool has_more = true;
    if (!reader.take('{')) return false;
    for (bool is_first = true;; is_first = false) {
        std::string_view key;
        if (!reader.next('}', is_first, has_more)) return false;
        if (!has_more) return true;
        if (!reader.plain_string(key) || !reader.take(':') || !read(key)) return false;
    }
}

// Calls `read` for each element.
template <typename Read>
bool read_list(JsonReader& reader, const Read& read) {
    bool has_more = true;
    if (!reader.take('[')) return false;
    for (bool is_first = true;; is_first = false) {
        if (!reader.next(']', is_first, has_more)) return false;
        if (!has_more) return true;
        if (!read()) return false;
    }
}

// The text of the next value, which is checked but for its numbers' range: it must still be read.
inline bool read_view(JsonReader& reader, std::string_view& text) {
    reader.peek();
    const size_t begin = reader.place();
    if (!reader.skip()) return false;
    text = reader.since(begin);
    return true;
}

// Whether a key comes for the first time.
inline bool claim(bool& has_come) {
    const bool is_first = !has_come;
    has_come = true;
    return is_first;
}

}  // namespace headway::door
