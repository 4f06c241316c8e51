#include "door/predict_request.h"

#include <algorithm>

#include "door/json_steps.h"
#include "door/json_tensor.h"
#include "door/json_value.h"
#include "msgpack_writer.h"

namespace headway::door {
namespace {

struct NamedTensor {
    std::string_view name, data, datatype;
    Shape shape;
    bool has_shape = false;
};

// An object of objects that each have "data", and beside it "shape" and "datatype" at most.
bool are_tensors(std::string_view input) {
    JsonReader reader(input);
    bool is_empty = true;
    const bool is_right = reader.peek() == '{' && read_object(reader, [&](std::string_view) {
        bool has_data = false;
        is_empty = false;
        if (reader.peek() != '{') return false;
        return read_object(reader, [&](std::string_view key) {
            has_data = has_data || key == "data";
            return (key == "data" || key == "shape" || key == "datatype") && reader.skip();
        }) && has_data;
    });
    return is_right && !is_empty;
}

// As the lists are nested, by the first of each; of what is no list no axes.
bool guess_shape(std::string_view data, Shape& shape) {
    while (data.starts_with('[')) {
        JsonReader reader(data);
        std::string_view first, other;
        uint64_t count = 0;
        if (!read_list(reader, [&] { return read_view(reader, count++ == 0 ? first : other); })) return false;
        if (!shape.add(count)) return false;
        data = first;
    }
    return true;
}

class Input {
public:
    Input(const Signature& signature, InferFields& fields) : signature_(signature), fields_(fields) {}

    bool read_tensors(std::string_view input) {
        JsonReader reader(input);
        std::string& out = fields_.msgpack;
        append_msgpack_string("tensors", out);
        const size_t head = out.size();
        size_t count = 0;
        out += '\0';
        const bool is_right = read_object(reader, [&](std::string_view name) {
            return ++count <= Signature::kMaxInputs && read_tensor(reader, name);
        });
        set_msgpack_head(Container::array, head, count, out);
        fields_.count = 1;
        return is_right && came_.is_all(signature_);
    }

    bool read_value(JsonReader& reader) {
        if (!signature_.takes_values || reader.peek() == 'n') return false;
        const bool is_text = reader.peek() == '"';
        append_msgpack_string("value", fields_.msgpack);
        const size_t begin = fields_.msgpack.size();
        fields_.count = 1;
        if (!append_msgpack_value(reader, fields_.msgpack)) return false;
        if (is_text) fields_.num_bytes = num_characters(std::string_view(fields_.msgpack).substr(begin));
        return true;
    }

private:
    // As Python's len() of a msgpack string.
    static uint64_t num_characters(std::string_view text) {
        MsgpackReader reader(text);
        const std::string_view characters = reader.string();
        return static_cast<uint64_t>(
            std::count_if(characters.begin(), characters.end(), [](char one) { return (one & 0xC0) != 0x80; }));
    }

    bool read_tensor(JsonReader& reader, std::string_view name) {
        NamedTensor tensor;
        bool has_data = false, has_datatype = false;
        tensor.name = name;
        const bool is_right = read_object(reader, [&](std::string_view key) {
            if (key == "data") return claim(has_data) && read_view(reader, tensor.data);
            if (key == "shape") return claim(tensor.has_shape) && read_shape(reader, tensor.shape);
            return key == "datatype" && claim(has_datatype) && reader.plain_string(tensor.datatype);
        });
        if (!is_right || (!tensor.has_shape && !guess_shape(tensor.data, tensor.shape))) return false;
        const std::optional<size_t> index = signature_.find_input(name);
        if (!index || !came_.add(*index)) return false;
        const TensorSpec& spec = signature_.inputs[*index];
        const std::optional<Datatype> datatype = has_datatype ? find_datatype(tensor.datatype) : spec.datatype;
        if (!datatype || !spec.fits(*datatype, tensor.shape.sizes())) return false;
        append_tensor_head(spec, tensor.shape.sizes(), fields_.msgpack);
        return append_data(tensor, spec.datatype);
    }

    bool append_data(const NamedTensor& tensor, Datatype datatype) {
        JsonReader data(tensor.data);
        const auto append = tensor.data.starts_with('[') ? append_json_tensor : append_json_scalar;
        const std::optional<uint64_t> num_bytes = append(data, datatype, tensor.shape.sizes(), fields_.msgpack);
        fields_.num_bytes += num_bytes.value_or(0);
        return num_bytes && data.is_at_end();
    }

    const Signature& signature_;
    InferFields& fields_;
    CameInputs came_;
};

// The whole body; `read_input` is called with the reader before input_data.
template <typename Read>
bool read_body(std::string_view body, const Read& read_input) {
    JsonReader reader(body);
    bool has_model = false, has_input = false;
    const bool is_right = is_utf8(body) && read_object(reader, [&](std::string_view key) {
        std::string_view text;
        if (key == "model_id") return claim(has_model) && reader.string(text) && !text.empty();
        return key == "input_data" && claim(has_input) && read_input(reader);
    });
    return is_right && reader.is_at_end() && has_model && has_input;
}

}  // namespace

bool find_model_id(std::string_view body, std::string& model_id) {
    JsonReader reader(body);
    bool has_found = false;
    read_object(reader, [&](std::string_view key) {
        std::string_view text;
        if (key != "model_id") return reader.skip();
        has_found = reader.string(text);
        model_id = text;
        return false;  // enough is read
    });
    return has_found && !model_id.empty() && is_utf8(model_id);
}

bool read_predict(std::string_view body, const Signature& signature, PredictInputs inputs, InferFields& fields) {
    fields.clear();
    Input input(signature, fields);
    return read_body(body, [&](JsonReader& reader) {
        std::string_view object;
        if (reader.peek() != '{') return inputs == PredictInputs::values && input.read_value(reader);
        if (!read_view(reader, object)) return false;
        if (are_tensors(object)) return input.read_tensors(object);
        JsonReader value(object);
        return inputs == PredictInputs::values && input.read_value(value);
    });
}

bool read_predict_texts(std::string_view body, std::vector<std::string>& texts) {
    texts.clear();
    return read_body(body, [&](JsonReader& reader) {
        const auto read_text = [&] {
            std::string_view text;
            return reader.string(text) && (texts.emplace_back(text), true);
        };
        return reader.peek() == '[' ? read_list(reader, read_text) && !texts.empty() : read_text();
    });
}

}  // namespace headway::door
