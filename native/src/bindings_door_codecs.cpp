// The codecs of the native way one by one, for tests against the Python way.

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "door/embedding_message.h"
#include "door/http_head.h"
#include "door/infer_answer.h"
#include "door/infer_request.h"
#include "door/outputs_message.h"
#include "door/predict_answer.h"
#include "door/predict_request.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headway {
namespace {

using door::ExponentSign;
using door::InferFields;
using door::Signature;
using door::Wish;

struct DoorCodecs {};  // a namespace to Python

nb::bytes bytes_of(std::string_view view) { return nb::bytes(view.data(), view.size()); }
ExponentSign sign_of(bool has_plus) { return has_plus ? ExponentSign::plus : ExponentSign::none; }

using Input = std::tuple<std::string, std::string, std::vector<int64_t>, bool>;

Signature make_signature(const std::vector<Input>& inputs, std::vector<std::string> outputs, bool takes_values) {
    Signature signature;
    for (const auto& [name, datatype, shape, is_optional] : inputs) {
        const auto known = door::find_datatype(datatype);
        require(known.has_value(), "an input has an unknown datatype");
        signature.inputs.push_back({name, *known, shape, is_optional});
    }
    signature.outputs = std::move(outputs);
    signature.takes_values = takes_values;
    return signature;
}

nb::object read_head(const nb::bytes& data) {
    door::RequestHead head;
    switch (door::read_head(view_of(data), head)) {
        case door::HeadState::partial: return nb::str("partial");
        case door::HeadState::other: return nb::str("other");
        case door::HeadState::plain: break;
    }
    nb::dict told;
    told["target"] = bytes_of(head.target);
    told["host"] = bytes_of(head.host);
    told["api_key"] = head.has_api_key ? nb::object(bytes_of(head.api_key)) : nb::none();
    told["request_id"] = bytes_of(head.request_id);
    told["head_bytes"] = head.head_bytes;
    told["content_length"] = head.content_length;
    told["json_length"] = head.json_length;
    return told;
}

std::vector<std::string> header_names() {
    std::vector<std::string> names(door::kHandledHeaders.begin(), door::kHandledHeaders.end());
    names.insert(names.end(), door::kOtherHeaders.begin(), door::kOtherHeaders.end());
    return names;
}

nb::object told_message(const InferFields& fields, const std::string& request_id) {
    std::string message;
    door::append_infer(request_id, fields, message);
    return nb::make_tuple(bytes_of(message), fields.num_bytes);
}

nb::object read_infer(const Signature& signature, const nb::bytes& body, std::optional<size_t> json_length,
                      const std::string& request_id) {
    InferFields fields;
    Wish wish;
    if (!door::read_infer(view_of(body), json_length, signature, fields, wish)) return nb::none();
    return nb::make_tuple(told_message(fields, request_id), wish);
}

nb::object infer_answer(const std::string& name, const std::string& version, const Wish& wish, const nb::bytes& message,
                        bool has_plus) {
    door::OutputsMessage outputs;
    door::InferAnswer answer;
    if (!outputs.read(view_of(message))) return nb::none();
    if (!door::make_infer_answer({name, version}, wish, outputs, sign_of(has_plus), answer)) return nb::none();
    nb::object json_length = answer.is_binary ? nb::object(nb::int_(answer.json_length)) : nb::none();
    return nb::make_tuple(bytes_of(answer.body), json_length);
}

nb::object read_predict(const Signature& signature, const nb::bytes& body, bool takes_images,
                        const std::string& request_id) {
    InferFields fields;
    const auto inputs = takes_images ? door::PredictInputs::images : door::PredictInputs::values;
    if (!door::read_predict(view_of(body), signature, inputs, fields)) return nb::none();
    return told_message(fields, request_id);
}

nb::object find_model_id(const nb::bytes& body) {
    std::string model_id;
    return door::find_model_id(view_of(body), model_id) ? nb::object(nb::str(model_id.data(), model_id.size())) : nb::none();
}

nb::object predict_answer(const std::string& name, const std::string& version, const nb::bytes& message) {
    door::OutputsMessage outputs;
    std::string body;
    if (!outputs.read(view_of(message)) || !door::make_predict_answer({name, version}, outputs, body)) return nb::none();
    return bytes_of(body);
}

nb::object read_predict_texts(const nb::bytes& body) {
    std::vector<std::string> texts;
    return door::read_predict_texts(view_of(body), texts) ? nb::cast(texts) : nb::none();
}

nb::object embedding_answer(const std::string& name, const std::string& version, const std::vector<nb::bytes>& messages) {
    std::vector<std::string_view> vectors;
    std::string body;
    for (const nb::bytes& message : messages) {
        door::EmbeddingMessage embedding;
        if (!embedding.read(view_of(message))) return nb::none();
        vectors.push_back(embedding.data);
    }
    return door::make_embedding_answer({name, version}, vectors, body) ? nb::object(bytes_of(body)) : nb::none();
}

}  // namespace

void bind_door_codecs(nb::module_& module) {
    nb::class_<Signature>(module, "PlainSignature", "What a model takes and gives, as the native way sees it.")
        .def(
            "__init__",
            [](Signature* self, const std::vector<Input>& inputs, std::vector<std::string> outputs, bool takes_values) {
                new (self) Signature(make_signature(inputs, std::move(outputs), takes_values));
            },
            "inputs"_a, "outputs"_a, "takes_values"_a = true);
    nb::class_<Wish>(module, "OutputsWish", "In which form a request wants its outputs.")
        .def_ro("id", &Wish::id)
        .def_ro("is_binary", &Wish::is_binary)
        .def_prop_ro("outputs", [](const Wish& self) {
            std::vector<std::pair<std::string, std::optional<bool>>> told;
            for (const door::OutputWish& output : self.outputs) told.emplace_back(output.name, output.is_binary);
            return told;
        });
    nb::class_<DoorCodecs>(module, "DoorCodecs", "The codecs of the native way one by one, for tests.")
        .def_static("read_head", &read_head, "data"_a)
        .def_static("header_names", &header_names)
        .def_static("read_infer", &read_infer, "signature"_a, "body"_a, "json_length"_a.none(), "request_id"_a)
        .def_static("infer_answer", &infer_answer, "name"_a, "version"_a, "wish"_a, "message"_a, "has_plus"_a)
        .def_static("read_predict", &read_predict, "signature"_a, "body"_a, "takes_images"_a, "request_id"_a)
        .def_static("read_predict_texts", &read_predict_texts, "body"_a)
        .def_static("embedding_answer", &embedding_answer, "name"_a, "version"_a, "messages"_a)
        .def_static("find_model_id", &find_model_id, "body"_a)
        .def_static("predict_answer", &predict_answer, "name"_a, "version"_a, "message"_a);
}

}  // namespace headway
