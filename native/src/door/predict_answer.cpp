#include "door/predict_answer.h"

#include <cmath>
#include <cstring>

#include "door/json_value.h"
#include "door/tensor_text.h"
#include "stream/plain_text.h"

namespace headway::door {
namespace {

bool append_tensors(const OutputsMessage& outputs, std::string& out) {
    out += ",\"outputs\":{";
    for (size_t i = 0; i < outputs.tensors.size(); ++i) {
        const OutputTensor& tensor = outputs.tensors[i];
        for (size_t j = 0; j < i; ++j) {
            if (outputs.tensors[j].name == tensor.name) return false;
        }
        if (i > 0) out += ',';
        append_json_string(tensor.name, out);
        out += ":{\"datatype\":";
        append_json_string(tensor.datatype, out);
        out += ",\"shape\":";
        append_shape(outputs.shape(tensor), out);
        out += ",\"data\":";
        constexpr NumberStyle style = {Numbers::python, ExponentSign::none};
        if (!append_nested_text(tensor.datatype, outputs.shape(tensor), tensor.data, style, out)) return false;
        out += '}';
    }
    out += '}';
    return true;
}

bool append_value(const OutputsMessage& outputs, std::string& out) {
    out += ",\"predictions\":";
    if (outputs.value.empty()) {
        out += "null";
        return true;
    }
    MsgpackReader reader(outputs.value);
    return append_json_value(reader, out);
}

void append_labels(const OutputsMessage& outputs, std::string& out) {
    out += ",\"labels\":[";
    for (size_t i = 0; i < outputs.labels.size(); ++i) {
        if (i > 0) out += ',';
        append_json_string(outputs.labels[i], out);
    }
    out += ']';
}

void append_model(const ModelNames& model, std::string& out) {
    out += "{\"model_id\":";
    append_json_string(model.name, out);
    out += ",\"model_version\":";
    append_json_string(model.version, out);
}

bool append_vector(std::string_view vector, std::string& out) {
    out += '[';
    for (size_t i = 0; i < vector.size(); i += sizeof(float)) {
        float value;
        std::memcpy(&value, vector.data() + i, sizeof value);
        if (i > 0) out += ',';
        if (!std::isfinite(value)) return false;
        append_double(value, ExponentSign::none, out);
    }
    out += ']';
    return true;
}

}  // namespace

bool make_predict_answer(const ModelNames& model, const OutputsMessage& outputs, std::string& body) {
    body.clear();
    append_model(model, body);
    if (outputs.has_error || (!outputs.tensors.empty() && !outputs.value.empty())) return false;
    if (!(outputs.tensors.empty() ? append_value(outputs, body) : append_tensors(outputs, body))) return false;
    if (outputs.has_labels) append_labels(outputs, body);
    body += '}';
    return true;
}

bool make_embedding_answer(const ModelNames& model, std::span<const std::string_view> vectors, std::string& body) {
    body.clear();
    append_model(model, body);
    body += ",\"predictions\":[";
    for (size_t i = 0; i < vectors.size(); ++i) {
        if (i > 0) body += ',';
        if (vectors[i].size() % sizeof(float) != 0 || !append_vector(vectors[i], body)) return false;
    }
    body += "]}";
    return true;
}

}  // namespace headway::door
