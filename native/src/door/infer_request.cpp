#include "door/infer_request.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "door/json_steps.h"
#include "door/json_tensor.h"
#include "msgpack_writer.h"

namespace headway::door {
namespace {

// Parameters of which one alone is known. `read` is called for its value.
template <typename Read>
bool read_parameter(JsonReader& reader, std::string_view known, const Read& read) {
    bool has_come = false;
    return read_object(reader, [&](std::string_view key) {
        if (key != known || has_come) return false;
        has_come = true;
        return read();
    });
}

constexpr uint64_t kMaxBytes = uint64_t{1} << 48;
constexpr size_t kMaxOutputs = 64;  // who asks for more is answered in Python

class Body {
public:
    Body(std::string_view json, std::string_view blobs, const Signature& signature, InferFields& fields, Wish& wish)
        : reader_(json), blobs_(blobs), signature_(signature), fields_(fields), wish_(wish) {}

    bool read() {
        const bool is_right = read_object(reader_, [this](std::string_view key) { return read_field(key); });
        if (!is_right || !reader_.is_at_end() || !has_inputs_ || !blobs_.empty()) return false;
        if (!wish_.outputs.empty()) append_outputs();
        return came_.is_all(signature_);
    }

private:
    // Of one input, as far as it was read.
    struct Input {
        std::string_view name, datatype, data;
        Shape shape;
        bool has_name = false, has_datatype = false, has_shape = false, has_data = false, has_parameters = false;
        bool is_appended = false;
        std::optional<uint64_t> num_bytes;  // behind the JSON

        bool has_head() const { return has_name && has_datatype && has_shape; }
    };

    bool read_field(std::string_view key) {
        if (key == "inputs") return claim(has_inputs_) && read_inputs();
        if (key == "outputs") return claim(has_outputs_) && read_outputs();
        if (key == "id") return claim(has_id_) && read_text(wish_.id);
        if (key != "parameters" || !claim(has_parameters_)) return false;
        return read_parameter(reader_, "binary_data_output", [this] { return reader_.boolean(wish_.is_binary); });
    }

    bool read_text(std::string& out) {
        std::string_view text;
        if (!reader_.string(text)) return false;
        out = text;
        return true;
    }

    // The number of tensors is known once they are read: few enough for one byte, else their head is made longer.
    bool read_inputs() {
        std::string& out = fields_.msgpack;
        append_msgpack_string("tensors", out);
        const size_t head = out.size();
        size_t count = 0;
        out += '\0';
        if (!read_list(reader_, [&] { return ++count <= Signature::kMaxInputs && read_input(); }) || count == 0) return false;
        set_msgpack_head(Container::array, head, count, out);
        ++fields_.count;
        return true;
    }

    bool read_input() {
        Input input;
        const auto read = [&](std::string_view key) { return read_input_field(key, input); };
        if (!read_object(reader_, read) || !input.has_head() || input.has_data == input.num_bytes.has_value()) return false;
        if (input.is_appended) return true;
        if (!input.has_data) return append_blob(input);
        JsonReader data(input.data);
        return append_data(data, input);
    }

    bool read_input_field(std::string_view key, Input& input) {
        if (key == "name") return claim(input.has_name) && reader_.plain_string(input.name);
        if (key == "datatype") return claim(input.has_datatype) && reader_.plain_string(input.datatype);
        if (key == "shape") return claim(input.has_shape) && read_shape(reader_, input.shape);
        if (key == "data") return claim(input.has_data) && read_data(input);
        if (key != "parameters" || !claim(input.has_parameters)) return false;
        return read_parameter(reader_, "binary_data_size", [&] { return reader_.size(kMaxBytes, input.num_bytes.emplace()); });
    }

    // Made into bytes at once where all is known that it takes, else later.
    bool read_data(Input& input) {
        if (input.has_head()) return input.is_appended = append_data(reader_, input);
        return read_view(reader_, input.data);
    }

    bool append_data(JsonReader& data, const Input& input) {
        const TensorSpec* spec = append_head(input);
        if (spec == nullptr) return false;
        const std::optional<uint64_t> size =
            append_json_tensor(data, spec->datatype, input.shape.sizes(), fields_.msgpack);
        fields_.num_bytes += size.value_or(0);
        return size.has_value();
    }

    bool append_blob(const Input& input) {
        const TensorSpec* spec = append_head(input);
        const uint64_t size = *input.num_bytes;
        if (spec == nullptr || size > blobs_.size()) return false;
        const std::string_view data = blobs_.substr(0, size);
        blobs_.remove_prefix(size);
        const std::optional<uint64_t> count = num_elements(input.shape.sizes());
        if (!count || !holds(spec->datatype, data, *count)) return false;
        append_msgpack_binary_head(size, fields_.msgpack);
        fields_.msgpack += data;
        fields_.num_bytes += size;
        return true;
    }

    static bool holds(Datatype datatype, std::string_view data, uint64_t count) {
        if (datatype == Datatype::bytes) return are_texts(data, count);
        if (data.size() != count * item_bytes(datatype)) return false;
        return datatype != Datatype::boolean ||
               std::all_of(data.begin(), data.end(), [](char one) { return one == 0 || one == 1; });
    }

    // nullptr: the model takes no such tensor, or has it already.
    const TensorSpec* append_head(const Input& input) {
        const std::optional<size_t> index = signature_.find_input(input.name);
        const std::optional<Datatype> datatype = find_datatype(input.datatype);
        if (!index || !datatype || !came_.add(*index)) return nullptr;
        const TensorSpec& spec = signature_.inputs[*index];
        if (!spec.fits(*datatype, input.shape.sizes()) || !num_elements(input.shape.sizes())) return nullptr;
        append_tensor_head(spec, input.shape.sizes(), fields_.msgpack);
        return &spec;
    }

    // Python refuses a name that comes twice.
    bool read_outputs() {
        if (!read_list(reader_, [this] { return wish_.outputs.size() < kMaxOutputs && read_output(); })) return false;
        std::array<std::string_view, kMaxOutputs> names;
        const auto end = std::transform(wish_.outputs.begin(), wish_.outputs.end(), names.begin(),
                                        [](const OutputWish& output) { return std::string_view(output.name); });
        std::sort(names.begin(), end);
        return std::adjacent_find(names.begin(), end) == end;
    }

    bool read_output() {
        OutputWish& output = wish_.outputs.emplace_back();
        bool has_name = false, has_parameters = false;
        const bool is_right = read_object(reader_, [&](std::string_view key) {
            if (key == "name") return claim(has_name) && read_text(output.name);
            if (key != "parameters" || !claim(has_parameters)) return false;
            return read_parameter(reader_, "binary_data",
                                  [&] { return reader_.boolean(output.is_binary.emplace()); });
        });
        return is_right && !output.name.empty() && signature_.may_give(output.name);
    }

    void append_outputs() {
        append_msgpack_string("outputs", fields_.msgpack);
        append_msgpack_head(Container::array, wish_.outputs.size(), fields_.msgpack);
        for (const OutputWish& output : wish_.outputs) append_msgpack_string(output.name, fields_.msgpack);
        ++fields_.count;
    }

    JsonReader reader_;
    std::string_view blobs_;
    const Signature& signature_;
    InferFields& fields_;
    Wish& wish_;
    CameInputs came_;
    bool has_inputs_ = false, has_outputs_ = false, has_id_ = false, has_parameters_ = false;
};

}  // namespace

bool read_infer(std::string_view body, std::optional<size_t> json_length, const Signature& signature, InferFields& fields,
                Wish& wish) {
    fields.clear();
    wish.clear();
    const size_t length = json_length.value_or(body.size());
    if (length == 0 || length > body.size()) return false;
    const std::string_view json = body.substr(0, length);
    return is_utf8(json) && Body(json, body.substr(length), signature, fields, wish).read();
}

}  // namespace headway::door
