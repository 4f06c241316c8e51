// A value of JSON's types between JSON and msgpack, as orjson, msgspec and /predict's reading of a value make them.
#pragma once

#include <string>
#include <string_view>

#include "door/json_reader.h"
#include "msgpack_reader.h"

namespace headway::door {

// Appends the reader's next value. False: it is not right JSON, or it is left to Python: an object {"b64": ...}, a key that
// comes twice or has escapes, a number at the edge of what a double holds, over 60 lists and objects within each other.
bool append_msgpack_value(JsonReader& reader, std::string& out);

// Appends the reader's next value as msgspec writes it: bytes in base64, null for what is not finite. False: it is left to
// Python: no text as a key, keys that come twice, text that is no UTF-8, extensions, over 60 levels.
bool append_json_value(MsgpackReader& reader, std::string& out);

}  // namespace headway::door
