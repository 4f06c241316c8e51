// How headway.checkpoint.mapping tells which mappings are files, and a worker what a lost page means.

#include <nanobind/stl/string.h>

#include "bindings.h"
#include "bus_error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headway {

void bind_bus_errors(nb::module_& module) {
    module.def("explain_bus_errors", &explain_bus_errors, "exit_code"_a,
               "From now on a lost page of a watched mapping ends the process with this code and a line on stderr.");
    module.def(
        "watch_mapping",
        [](uintptr_t start, size_t num_bytes, const std::string& path) {
            return watch_mapping(reinterpret_cast<const void*>(start), num_bytes, path);
        },
        "start"_a, "num_bytes"_a, "path"_a, "The mapping of a file; what unwatch_mapping takes.");
    module.def("unwatch_mapping", &unwatch_mapping, "place"_a, "To be called before it is unmapped.");
}

}  // namespace headway
