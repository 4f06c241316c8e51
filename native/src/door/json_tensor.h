// A tensor's elements from JSON to the protocol's binary layout, as server/tensors makes them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "door/json_reader.h"
#include "door/signature.h"

namespace headway::door {

// A list of sizes, none of them negative.
bool read_shape(JsonReader& reader, Shape& shape);

// Appends msgpack's binary of a list: the elements in row-major order, or nested as the shape is. How many bytes they have;
// nullopt: it is another value, or has an element that the datatype does not take; BF16 is in no JSON. What was appended
// means nothing then.
std::optional<uint64_t> append_json_tensor(JsonReader& reader, Datatype datatype, std::span<const uint64_t> shape,
                                           std::string& out);
// The same of one element outside of a list.
std::optional<uint64_t> append_json_scalar(JsonReader& reader, Datatype datatype, std::span<const uint64_t> shape,
                                           std::string& out);

// Whether bytes are `count` elements of BYTES, each behind its length in 4 bytes.
bool are_texts(std::string_view data, uint64_t count);

}  // namespace headway::door
