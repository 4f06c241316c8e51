// The native way of inference requests: from a connection's bytes to a worker's socket and back without the interpreter.

#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "bindings.h"
#include "bindings_writes.h"
#include "door/codec.h"
#include "door/connection.h"
#include "door/door.h"
#include "door/frame_writer.h"
#include "door/infer_codec.h"
#include "door/model.h"
#include "door/predict_codec.h"
#include "door/text_codec.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headway {
namespace {

using door::Codec;
using door::Connection;
using door::Counts;
using door::Door;
using door::Entry;
using door::FrameWriter;
using door::Instance;
using door::Model;

using TensorFields = std::tuple<std::string, std::string, std::vector<int64_t>, bool>;

// Throws std::invalid_argument for a signature that the native way does not read.
door::Signature make_signature(const std::vector<TensorFields>& inputs, const std::vector<std::string>& outputs,
                               bool takes_values) {
    door::Signature signature;
    require(inputs.size() <= door::Signature::kMaxInputs, "the signature has too many inputs");
    for (const auto& [name, datatype, shape, is_optional] : inputs) {
        const auto known = door::find_datatype(datatype);
        require(known.has_value(), "the signature has an input of an unknown datatype");
        require(!signature.find_input(name), "the signature has two inputs of one name");
        signature.inputs.push_back({name, *known, shape, is_optional});
    }
    signature.outputs = outputs;
    signature.takes_values = takes_values;
    return signature;
}

void bind_model(nb::module_& module) {
    nb::class_<FrameWriter>(module, "FrameWriter", "What goes down to a worker process.")
        .def(nb::init<nb::object, int, nb::object>(), "transport"_a, "fd"_a, "schedule"_a)
        .def(
            "write", [](FrameWriter& self, const nb::bytes& payload) { self.write(view_of(payload)); }, "payload"_a)
        .def("flush", &FrameWriter::flush)
        .def("lose", &FrameWriter::lose);
    nb::class_<Model>(module, "PlainModel", "What is open at a model that takes tensors.")
        .def(nb::init<>())
        .def_rw("num_at_work", &Model::num_at_work)
        .def_rw("num_waiting", &Model::num_waiting)
        .def_rw("num_open_bytes", &Model::num_open_bytes)
        .def_ro("num_in_flight", &Model::num_in_flight)
        .def_ro("num_uses", &Model::num_uses)
        .def_ro("num_answered", &Model::num_answered)
        .def_ro("is_leased", &Model::is_leased)
        .def(
            "set_limits",
            [](Model& self, std::optional<int64_t> max_at_work, std::optional<int64_t> max_queued, int64_t max_open_bytes,
               int64_t num_places) {
                self.max_at_work = max_at_work.value_or(-1);
                self.max_queued = max_queued.value_or(-1);
                self.max_open_bytes = max_open_bytes;
                self.num_places = num_places;
            },
            nb::kw_only(), "max_at_work"_a.none(), "max_queued"_a.none(), "max_open_bytes"_a, "num_places"_a)
        .def(
            "open",
            [](Model& self, nb::object try_lease, nb::object dispatch) {
                self.try_lease = std::move(try_lease);
                self.dispatch = std::move(dispatch);
            },
            "try_lease"_a, "dispatch"_a)
        .def("end_lease",
             [](Model& self) {
                 self.is_leased = false;
                 return std::pair(std::exchange(self.num_uses, 0), std::exchange(self.num_answered, 0));
             })
        .def("close", &Model::close);
    nb::class_<Instance>(module, "PlainInstance", "A process of a PlainModel.")
        // Made there, so that what asks one for itself (shared_from_this) is given it.
        .def(nb::new_([](std::shared_ptr<Model> model, std::shared_ptr<FrameWriter> writer, nb::object on_abort,
                         nb::object decode) {
                 return std::make_shared<Instance>(std::move(model), std::move(writer), std::move(on_abort),
                                                   std::move(decode));
             }),
             "model"_a, "writer"_a.none(), "on_abort"_a, "decode"_a)
        .def_rw("num_open", &Instance::num_open)
        .def_rw("is_ready", &Instance::is_ready)
        .def_prop_ro("num_in_flight", &Instance::num_in_flight)
        .def("take", &Instance::take, "payload"_a)
        .def("fail", &Instance::fail, "error"_a)
        .def("expire", &Instance::expire, "now_s"_a, "error"_a);
}

void bind_entry(nb::module_& module) {
    nb::class_<Codec>(module, "DoorCodec", "What a path's requests are read with, and its answers written with.");
    module.def(
        "infer_codec",
        [](const std::vector<TensorFields>& inputs, const std::vector<std::string>& outputs, const std::string& name,
           const std::string& version, bool has_plus) -> std::shared_ptr<Codec> {
            const auto sign = has_plus ? door::ExponentSign::plus : door::ExponentSign::none;
            return std::make_shared<door::InferCodec>(make_signature(inputs, outputs, false), door::ModelNames{name, version},
                                                      sign);
        },
        nb::kw_only(), "inputs"_a, "outputs"_a, "name"_a, "version"_a, "has_plus"_a);
    module.def(
        "predict_codec",
        [](const std::vector<TensorFields>& inputs, bool takes_values, bool takes_images, const std::string& name,
           const std::string& version) -> std::shared_ptr<Codec> {
            const auto kind = takes_images ? door::PredictInputs::images : door::PredictInputs::values;
            return std::make_shared<door::PredictCodec>(make_signature(inputs, {}, takes_values), kind,
                                                        door::ModelNames{name, version});
        },
        nb::kw_only(), "inputs"_a, "takes_values"_a, "takes_images"_a, "name"_a, "version"_a);
    module.def(
        "text_codec",
        [](std::string prompt, std::string name, std::string version) -> std::shared_ptr<Codec> {
            return std::make_shared<door::TextCodec>(std::move(prompt),
                                                     door::ModelNames{std::move(name), std::move(version)});
        },
        nb::kw_only(), "prompt"_a, "name"_a, "version"_a);
    nb::class_<Counts>(module, "DoorCounts", "What was answered natively.")
        .def(
            "__init__",
            [](Counts* self, std::string handler, std::shared_ptr<HistogramCounts> http_seconds,
               std::shared_ptr<HistogramCounts> infer_seconds) {
                new (self) Counts{std::move(handler), std::move(http_seconds), std::move(infer_seconds)};
            },
            "handler"_a, "http_seconds"_a, "infer_seconds"_a.none())
        .def("take", [](Counts& self) {
            return std::tuple(std::exchange(self.num_answered, 0), std::exchange(self.seconds, 0.0), self.last_unix_ms,
                              std::exchange(self.num_tokens, 0));
        });
    nb::class_<Entry>(module, "DoorEntry", "What all requests of a path share.")
        .def(
            "__init__",
            [](Entry* self, std::shared_ptr<Counts> counts, std::shared_ptr<Model> model, std::shared_ptr<Codec> codec,
               std::optional<double> timeout_s) {
                new (self) Entry{std::move(counts), std::move(model), std::move(codec),
                                 timeout_s.value_or(std::numeric_limits<double>::infinity())};
            },
            nb::kw_only(), "counts"_a, "model"_a, "codec"_a, "timeout_s"_a.none());
}

}  // namespace

void bind_door(nb::module_& module) {
    bind_model(module);
    bind_entry(module);
    nb::class_<Door>(module, "Door", "Which paths have a native way, and what all connections of a server share.")
        .def(
            "__init__",
            [](Door* self, std::shared_ptr<WriteQueue> queue, nb::object schedule, std::vector<std::string> hosts,
               std::vector<std::string> api_keys, size_t max_body_bytes, size_t max_held_bytes,
               nb::object on_records, nb::object on_gathering) {
                new (self) Door(std::move(queue), std::move(schedule),
                                {std::move(hosts), std::move(api_keys), max_body_bytes, max_held_bytes},
                                std::move(on_records), std::move(on_gathering));
            },
            "queue"_a, "schedule"_a, nb::kw_only(), "hosts"_a, "api_keys"_a, "max_body_bytes"_a, "max_held_bytes"_a,
            "on_records"_a, "on_gathering"_a)
        .def("add", &Door::add, "path"_a, "entry"_a)
        .def("add_predict", &Door::add_predict, "model"_a, "entry"_a)
        .def("drop", &Door::drop)
        .def_prop_ro("num_entries", &Door::num_entries)
        .def_ro("num_open", &Door::num_open)
        .def_prop_ro("num_held_bytes", &Door::num_held_bytes)
        .def_rw("keeps_records", &Door::keeps_records)
        .def("take_records",
             [](Door& self) {
                 nb::list told;
                 for (door::Record& record : self.take_records()) {
                     told.append(nb::make_tuple(record.counts->handler, record.request_id, record.seconds));
                 }
                 return told;
             })
        .def(
            "expire", [](Door& self, double limit_s) { return self.expire(door::monotonic_s(), limit_s); }, "limit_s"_a);
    nb::class_<Connection>(module, "DoorConnection", "A client's connection, as the native way sees it.")
        .def(nb::new_([](std::shared_ptr<Door> door, std::shared_ptr<Outlet> outlet, nb::object protocol) {
                 return std::make_shared<Connection>(std::move(door), std::move(outlet), std::move(protocol));
             }),
             "door"_a, "outlet"_a, "protocol"_a)
        .def_prop_ro("is_busy", &Connection::is_busy)
        .def_prop_ro("is_gathering", &Connection::is_gathering)
        .def_prop_ro("last_answer_s", &Connection::last_answer_s)
        .def_prop_ro("num_bytes_behind", &Connection::num_bytes_behind)
        .def_prop_ro("closes", &Connection::closes)
        .def("take", &Connection::take, "data"_a)
        .def("release", &Connection::release)
        .def("close_after", &Connection::close_after)
        .def("lose", [](Connection& self) -> nb::object {
            const std::shared_ptr<Entry> entry = self.entry();
            const auto left = self.lose();
            if (!left) return nb::none();
            return nb::make_tuple(entry->counts, left->second, left->first);
        });
}

}  // namespace headway
