// A tensor's elements from the protocol's binary layout to JSON, as server/tensors tells them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "door/number_text.h"

namespace headway::door {

// Which library's way of numbers the Python way has there.
enum class Numbers {
    array,   // orjson's of a numpy array: a float32 in its own shortest digits
    python,  // msgspec's of Python's floats: the same number as a double
};

struct NumberStyle {
    Numbers numbers;
    ExponentSign sign;
};

void append_shape(std::span<const uint64_t> shape, std::string& out);

// Appends the elements as one flat list. False: JSON has no words for one, or bytes and shape do not agree; what was
// appended means nothing then.
bool append_flat_text(std::string_view datatype, std::span<const uint64_t> shape, std::string_view data, NumberStyle style,
                      std::string& out);
// The same in lists nested as the shape is; of no axes the one element.
bool append_nested_text(std::string_view datatype, std::span<const uint64_t> shape, std::string_view data,
                        NumberStyle style, std::string& out);

}  // namespace headway::door
