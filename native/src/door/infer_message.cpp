#include "door/infer_message.h"

#include "msgpack_writer.h"

namespace headway::door {

void append_infer(std::string_view request_id, const InferFields& fields, std::string& out) {
    append_msgpack_head(Container::map, 2 + fields.count, out);
    append_msgpack_string("type", out);
    append_msgpack_string("infer", out);
    append_msgpack_string("request_id", out);
    append_msgpack_string(request_id, out);
    out += fields.msgpack;
}

void append_tensor_head(const TensorSpec& spec, std::span<const uint64_t> shape, std::string& out) {
    append_msgpack_head(Container::map, 4, out);
    append_msgpack_string("name", out);
    append_msgpack_string(spec.name, out);
    append_msgpack_string("datatype", out);
    append_msgpack_string(datatype_name(spec.datatype), out);
    append_msgpack_string("shape", out);
    append_msgpack_head(Container::array, shape.size(), out);
    for (const uint64_t size : shape) append_msgpack_uint(size, out);
    append_msgpack_string("data", out);
}

}  // namespace headway::door
