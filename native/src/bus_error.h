// What a SIGBUS says of a mapped file: its page is gone, since somebody has cut the file. The process ends with a line
// that names the file, in place of a death that nobody can explain.
#pragma once

#include <cstddef>
#include <string>

namespace headway {

// From now on a SIGBUS in a watched mapping writes a line to standard error and ends the process with `exit_code`; any
// other SIGBUS kills it as before. For processes of their own only: the handler is the whole process's.
void explain_bus_errors(int exit_code);

// The mapping of the file `path`; returns what unwatch_mapping takes, or -1 where too many are watched already.
int watch_mapping(const void* start, size_t num_bytes, const std::string& path);

// Before it is unmapped: the addresses may be another's then. -1 is ignored.
void unwatch_mapping(int place);

}  // namespace headway
