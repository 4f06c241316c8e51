// What the codecs of a plain request take: 64 floats in and 8 out over the Open Inference Protocol, a text and a list of
// 384 floats over /predict. The least of many runs, in microseconds.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>

#include "door/http_head.h"
#include "door/infer_answer.h"
#include "door/infer_request.h"
#include "door/outputs_message.h"
#include "door/predict_answer.h"
#include "door/predict_request.h"
#include "msgpack_writer.h"

namespace {

using namespace headway::door;

template <typename Run>
void measure(const char* name, const Run& run) {
    constexpr int num_calls = 200, num_runs = 200;
    double least_us = 1e9;
    for (int i = 0; i < num_runs; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        for (int j = 0; j < num_calls; ++j) run();
        const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
        least_us = std::min(least_us, taken.count() / num_calls);
    }
    std::printf("%-36s %7.2f us\n", name, least_us);
}

std::string floats(size_t count, std::mt19937& random) {
    std::uniform_real_distribution<double> values(-1, 1);
    std::string text;
    for (size_t i = 0; i < count; ++i) {
        char number[32];
        std::snprintf(number, sizeof number, "%s%.17g", i > 0 ? ", " : "", values(random));
        text += number;
    }
    return text;
}

std::string outputs_of(size_t count, bool is_value, std::mt19937& random) {
    std::uniform_real_distribution<float> values(-1, 1);
    std::string out, data;
    using headway::Container;
    headway::append_msgpack_head(Container::map, 3, out);
    for (const char* text : {"type", "outputs", "request_id", "n1"}) headway::append_msgpack_string(text, out);
    if (is_value) {
        headway::append_msgpack_string("value", out);
        headway::append_msgpack_head(Container::array, count, out);
        for (size_t i = 0; i < count; ++i) headway::append_msgpack_double(values(random), out);
        return out;
    }
    headway::append_msgpack_string("tensors", out);
    headway::append_msgpack_head(Container::array, 1, out);
    headway::append_msgpack_head(Container::map, 4, out);
    for (const char* text : {"name", "y", "datatype", "FP32", "shape"}) headway::append_msgpack_string(text, out);
    headway::append_msgpack_head(Container::array, 2, out);
    headway::append_msgpack_uint(1, out);
    headway::append_msgpack_uint(count, out);
    headway::append_msgpack_string("data", out);
    headway::append_msgpack_binary_head(4 * count, out);
    for (size_t i = 0; i < count; ++i) {
        const float value = values(random);
        out.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return out;
}

}  // namespace

int main() {
    std::mt19937 random(1);
    Signature signature;
    signature.inputs = {{"x", Datatype::fp32, {-1, 64}, false}};
    signature.outputs = {"y"};
    const std::string infer =
        R"({"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [)" + floats(64, random) + "]}]}";
    const std::string blob_json =
        R"({"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "parameters": {"binary_data_size": 256}}]})";
    const std::string blob = blob_json + std::string(256, '\x3E');
    const std::string head = "POST /v2/models/mlp/infer HTTP/1.1\r\nHost: localhost:8000\r\nAccept: */*\r\n"
                             "Content-Type: application/json\r\nContent-Length: " + std::to_string(infer.size()) + "\r\n\r\n";
    const std::string text = R"({"model_id": "minilm", "input_data": "The quick brown fox jumps over the lazy dog."})";
    const std::string list = R"({"model_id": "noop", "input_data": [)" + floats(384, random) + "]}";
    const std::string eight = outputs_of(8, false, random), vector = outputs_of(384, true, random);

    RequestHead fields_of_head;
    InferFields fields;
    Wish wish;
    OutputsMessage outputs;
    InferAnswer answer;
    std::string message, body;
    bool is_right = true;
    measure("head", [&] { is_right &= read_head(head, fields_of_head) == HeadState::plain; });
    measure("infer, 64 floats in JSON", [&] {
        is_right &= read_infer(infer, std::nullopt, signature, fields, wish);
        message.clear();
        append_infer("n123456", fields, message);
    });
    measure("infer, 64 floats in binary", [&] { is_right &= read_infer(blob, blob_json.size(), signature, fields, wish); });
    measure("infer, answer of 8 floats", [&] {
        is_right &= outputs.read(eight) && make_infer_answer({"mlp", "1"}, wish, outputs, ExponentSign::plus, answer);
    });
    measure("predict, a text", [&] { is_right &= read_predict(text, signature, PredictInputs::values, fields); });
    measure("predict, 384 floats", [&] { is_right &= read_predict(list, signature, PredictInputs::values, fields); });
    measure("predict, answer of 384 floats", [&] {
        is_right &= outputs.read(vector) && make_predict_answer({"noop", "1"}, outputs, body);
    });
    return is_right ? 0 : 1;
}
