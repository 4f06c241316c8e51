#include "door/infer_answer.h"

#include <algorithm>

#include "door/tensor_text.h"
#include "stream/plain_text.h"

namespace headway::door {
namespace {

class Writer {
public:
    Writer(const OutputsMessage& outputs, ExponentSign sign, InferAnswer& answer)
        : outputs_(outputs), sign_(sign), answer_(answer), out_(answer.body) {}

    bool write(const ModelNames& model, const Wish& wish) {
        write_names(model, wish);
        if (wish.outputs.empty()) {
            for (const OutputTensor& tensor : outputs_.tensors) {
                if (!write_output(tensor, wish.is_binary)) return false;
            }
        }
        for (const OutputWish& output : wish.outputs) {
            // Of a name that comes twice the last one is meant.
            const auto found = std::find_if(outputs_.tensors.rbegin(), outputs_.tensors.rend(),
                                            [&](const OutputTensor& tensor) { return tensor.name == output.name; });
            if (found == outputs_.tensors.rend()) return false;
            if (!write_output(*found, output.is_binary.value_or(wish.is_binary))) return false;
        }
        out_ += "]}";
        answer_.json_length = out_.size();
        for (const std::string_view blob : blobs_) out_ += blob;
        return true;
    }

private:
    void write_names(const ModelNames& model, const Wish& wish) {
        out_ += '{';
        if (!wish.id.empty()) {
            out_ += "\"id\":";
            append_json_string(wish.id, out_);
            out_ += ',';
        }
        out_ += "\"model_name\":";
        append_json_string(model.name, out_);
        out_ += ",\"model_version\":";
        append_json_string(model.version, out_);
        out_ += ",\"outputs\":[";
    }

    bool write_output(const OutputTensor& tensor, bool is_binary) {
        if (out_.back() != '[') out_ += ',';
        out_ += "{\"name\":";
        append_json_string(tensor.name, out_);
        out_ += ",\"datatype\":";
        append_json_string(tensor.datatype, out_);
        out_ += ",\"shape\":";
        const std::span<const uint64_t> shape = outputs_.shape(tensor);
        append_shape(shape, out_);
        if (is_binary) {
            answer_.is_binary = true;
            blobs_.push_back(tensor.data);
            out_ += ",\"parameters\":{\"binary_data_size\":";
            append_uint(tensor.data.size(), out_);
            out_ += "}}";
            return true;
        }
        out_ += ",\"data\":";
        if (!append_flat_text(tensor.datatype, shape, tensor.data, {Numbers::array, sign_}, out_)) return false;
        out_ += '}';
        return true;
    }

    const OutputsMessage& outputs_;
    ExponentSign sign_;
    InferAnswer& answer_;
    std::string& out_;
    std::vector<std::string_view> blobs_;
};

}  // namespace

bool make_infer_answer(const ModelNames& model, const Wish& wish, const OutputsMessage& outputs, ExponentSign sign,
                       InferAnswer& answer) {
    answer.body.clear();
    answer.is_binary = false;
    answer.json_length = 0;
    return !outputs.has_error && outputs.value.empty() && Writer(outputs, sign, answer).write(model, wish);
}

}  // namespace headway::door
