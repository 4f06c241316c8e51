// The codecs of the native way: what is cut or spoilt is left alone, and nothing behind it is read.

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "door/http_head.h"
#include "door/infer_answer.h"
#include "door/infer_request.h"
#include "door/outputs_message.h"
#include "door/predict_answer.h"
#include "door/predict_request.h"
#include "door/text_codec.h"

namespace {

using namespace std::string_literals;
using namespace headway::door;

const std::string kHead =
    "POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost:8000\r\nAuthorization: Bearer k\r\nX-Request-Id: a-1\r\n"
    "Inference-Header-Content-Length: 12\r\nContent-Length: 34\r\n\r\n"s;

const std::string kInfer =
    R"({"id":"\u00e9","inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[[1,-2.5],[3e-3,4]]},)"
    R"({"data":["a","\n"],"name":"t","datatype":"BYTES","shape":[2]},{"name":"b","datatype":"INT64","shape":[1],)"
    R"("parameters":{"binary_data_size":8}}],"outputs":[{"name":"y","parameters":{"binary_data":true}}]})"s;
const std::string kBlob = "\x01\x02\x03\x04\x05\x06\x07\x08"s;

const std::string kPredict = R"({"model_id":"m","input_data":[{"a":[1,2.5,null,true,"text\ud83d\ude00"]},[[]],-7]})"s;
const std::string kTensors = R"({"input_data":{"x":{"data":[[1,2],[3,4]]},"t":{"data":"a","shape":[1]}},"model_id":"m"})"s;

// {"type": "outputs", "request_id": "n1", "tensors": [...], "value": {"a": [1.5, bytes]}, "labels": ["l"]}: of one part each.
const std::string kType = "\xA4type\xA7outputs\xAArequest_id\xA2n1"s;
const std::string kOutputs = "\x84" + kType +
                             "\xA7tensors\x92\x84\xA4name\xA1y\xA8" "datatype\xA4" "FP32\xA5shape\x91\x02\xA4" "data\xC4\x08"
                             "\x00\x00\x80\x3F\x00\x00\x00\x40\x84\xA4name\xA1t\xA8" "datatype\xA5" "BYTES\xA5shape\x90\xA4" "data\xC4\x05"
                             "\x01\x00\x00\x00" "a\xA6labels\x91\xA1l"s;
const std::string kValue =
    "\x83" + kType + "\xA5value\x81\xA1" "a\x94\xCB\x3F\xF8\x00\x00\x00\x00\x00\x00\xC4\x02hi\xD1\xFF\x00\xA1z"s;

const std::string kTexts = R"({"model_id":"m","input_data":["a\u00e9","",  "b"]})"s;
const std::string kEmbedding = "\x83\xA4type\xA9" "embedding\xAArequest_id\xA1" "7\xA4" "data\xC4\x08\x00\x00\x80\x3F\x00\x00\x00\x40"s;
// Of four fields.
const std::string kCountedEmbedding =
    "\x84\xA4type\xA9" "embedding\xAArequest_id\xA1" "7\xA4" "data\xC4\x08\x00\x00\x80\x3F\x00\x00\x00\x40"
    "\xAAnum_tokens\xCD\x01\x2C"s;

Signature make_signature() {
    Signature signature;
    signature.inputs = {{"x", Datatype::fp32, {-1, 2}, false},
                        {"t", Datatype::bytes, {-1}, false},
                        {"b", Datatype::int64, {1}, true}};
    signature.outputs = {"y"};
    return signature;
}
const Signature kSignature = make_signature();

// On memory of its own, so that a byte behind it is seen.
template <typename Take>
void take_exactly(std::string_view bytes, const Take& take) {
    const std::vector<char> copy(bytes.begin(), bytes.end());
    take(std::string_view(copy.data(), copy.size()));
}

bool infers(std::string_view body, size_t json_length) {
    InferFields fields;
    Wish wish;
    return read_infer(body, json_length, kSignature, fields, wish);
}

bool predicts(std::string_view body) {
    InferFields fields;
    std::string model_id;
    find_model_id(body, model_id);
    return read_predict(body, kSignature, PredictInputs::values, fields);
}

bool reads_texts(std::string_view body) {
    std::vector<std::string> texts;
    return read_predict_texts(body, texts);
}

const TextCodec kTextCodec("query: ", {"m", "1"});

// One text alone.
bool submits_text(std::string_view body) {
    std::string submit;
    return kTextCodec.read(RequestHead{}, body, "n1", submit) != nullptr;
}

bool embeds(std::string_view message) {
    Answer answer;
    return kTextCodec.write(message, Asked{}, answer);
}

void test_one_text_is_sent_as_it_is_and_its_vector_told() {
    std::string submit;
    const auto asked = kTextCodec.read(RequestHead{}, R"({"model_id":"m","input_data":["\u00fc x"]})", "n1", submit);
    CHECK(asked != nullptr && asked->num_bytes == 4, "one in a list");
    CHECK(submit == "\x83\xA4type\xAB" "submit_text\xAArequest_id\xA2n1\xA4text\xABquery: \xC3\xBC x", "as msgspec has it");
    CHECK(!submits_text(R"({"model_id":"m","input_data":["a","b"]})"), "two texts");
    CHECK(!submits_text(R"({"model_id":"m","input_data":""})"), "nothing");
    const std::string longest(TextCodec::kMaxTextBytes, 'a');
    CHECK(submits_text(R"({"model_id":"m","input_data":")" + longest + "\"}"), "as long as may be");
    CHECK(!submits_text(R"({"model_id":"m","input_data":")" + longest + "a\"}"), "longer");
    Answer answer;
    CHECK(kTextCodec.write(kCountedEmbedding, Asked{}, answer) && answer.num_tokens == 300, "its tokens");
    CHECK(answer.body == R"({"model_id":"m","model_version":"1","predictions":[[1.0,2.0]]})", "its vector");
}

// Whether it is told in each form.
bool answers(std::string_view message) {
    OutputsMessage outputs;
    if (!outputs.read(message)) return false;
    InferAnswer answer;
    std::string body;
    Wish wish;
    const bool is_told = make_infer_answer({"m", "1"}, wish, outputs, ExponentSign::plus, answer);
    wish.outputs.push_back({"y", true});
    make_infer_answer({"m", "1"}, wish, outputs, ExponentSign::none, answer);
    return make_predict_answer({"m", "1"}, outputs, body) || is_told;
}

template <typename Takes>
void check_cuts(std::string_view whole, const Takes& takes) {
    CHECK(takes(whole), "the whole");
    for (size_t size = 0; size < whole.size(); ++size) {
        take_exactly(whole.substr(0, size), [&](std::string_view cut) { CHECK(!takes(cut), "%zu bytes", size); });
    }
}

void test_what_is_whole_is_taken_and_what_is_cut_is_not() {
    RequestHead head;
    CHECK(read_head(kHead, head) == HeadState::plain && head.head_bytes == kHead.size(), "%zu", head.head_bytes);
    CHECK(head.api_key == "k" && head.json_length == size_t{12} && head.content_length == 34, "its fields");
    for (size_t size = 0; size < kHead.size(); ++size) {
        take_exactly(std::string_view(kHead).substr(0, size), [&](std::string_view cut) {
            CHECK(read_head(cut, head) == HeadState::partial, "%zu bytes", size);
        });
    }
    check_cuts(kInfer + kBlob, [](std::string_view cut) { return infers(cut, std::min(cut.size(), kInfer.size())); });
    for (const std::string& body : {kPredict, kTensors}) check_cuts(body, predicts);
    for (const std::string& message : {kOutputs, kValue}) check_cuts(message, answers);
    check_cuts(kTexts, reads_texts);
    for (const std::string& message : {kEmbedding, kCountedEmbedding}) check_cuts(message, embeds);
}

// Bytes changed, left out, doubled, or taken from elsewhere in it.
std::string spoil(std::string text, std::mt19937& random) {
    for (uint32_t left = 1 + random() % 4; left > 0 && !text.empty(); --left) {
        const size_t place = random() % text.size(), size = random() % 6;
        switch (random() % 4) {
            case 0: text[place] = static_cast<char>(random()); break;
            case 1: text.erase(place, size); break;
            case 2: text.insert(place, text.substr(random() % text.size(), size)); break;
            default: text[place] = "[]{}\",:0-e.\\u \xC4\xDC\xDF\xFF"[random() % 18]; break;
        }
    }
    return text;
}

void test_what_is_spoilt_is_read_within_its_bounds() {
    std::mt19937 random(7);
    RequestHead head;
    size_t num_taken = 0;
    for (int round = 0; round < 20000; ++round) {
        take_exactly(spoil(kHead, random), [&](std::string_view data) {
            if (read_head(data, head) == HeadState::plain) CHECK(head.head_bytes <= data.size(), "round %d", round);
        });
        take_exactly(spoil(kInfer, random) + kBlob, [&](std::string_view data) {
            num_taken += infers(data, data.size() - kBlob.size());
        });
        take_exactly(spoil(kPredict, random), [&](std::string_view data) { num_taken += predicts(data); });
        take_exactly(spoil(kTensors, random), [&](std::string_view data) { num_taken += predicts(data); });
        take_exactly(spoil(kOutputs, random), [&](std::string_view data) { num_taken += answers(data); });
        take_exactly(spoil(kValue, random), [&](std::string_view data) { num_taken += answers(data); });
        take_exactly(spoil(kTexts, random), [&](std::string_view data) { num_taken += reads_texts(data); });
        take_exactly(spoil(kTexts, random), [&](std::string_view data) { num_taken += submits_text(data); });
        take_exactly(spoil(kEmbedding, random), [&](std::string_view data) { num_taken += embeds(data); });
        take_exactly(spoil(kCountedEmbedding, random), [&](std::string_view data) { num_taken += embeds(data); });
    }
    CHECK(num_taken > 1000, "%zu of them were right: too few to say anything", num_taken);
}

void test_what_claims_much_is_refused_before_it_is_made() {
    const std::string many = R"({"inputs":[{"name":"x","datatype":"FP32","shape":[100000000000,2],"data":[1]}]})";
    CHECK(!infers(many, many.size()), "200 billion floats in one");
    CHECK(!predicts(R"({"model_id":"m","input_data":)" + std::string(100000, '[')), "a hundred thousand lists in each other");
    CHECK(!answers("\x83" + kType + "\xA5value" + std::string(100000, '\x91')), "the same in an answer");
    CHECK(!answers("\x83" + kType + "\xA7tensors\xDD\xFF\xFF\xFF\xFF"s), "four billion tensors that are not there");
    CHECK(!answers("\x83" + kType + "\xA6labels\xDD\xFF\xFF\xFF\xFF"s), "as many labels");
}

}  // namespace

void headway_tests::test_door() {
    test_one_text_is_sent_as_it_is_and_its_vector_told();
    test_what_is_whole_is_taken_and_what_is_cut_is_not();
    test_what_is_spoilt_is_read_within_its_bounds();
    test_what_claims_much_is_refused_before_it_is_made();
}
