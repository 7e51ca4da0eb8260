// The log of a program: where it goes, in which form, and that it never holds up the program.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace retroinfer::common {

class Settings;

struct LogOptions {
  std::string level = "info";   // "debug", "info", "warning" or "error": this and worse
  std::string format = "text";  // "text": "2026-11-22T03:19:46.120Z info gpu_worker: message";
                                // "json": an object with time, level, process and message
  std::string file;             // appended to, mode 0640; empty: stderr
};

// Adds --log-level, --log-format and --log-file.
void AddLogOptions(Settings* settings, LogOptions* options);

// From now on sends what spdlog's functions and gRPC log to the log, by a LogWriter, as lines of
// `process`: a reader of the log that does not read, a full disk or a broken pipe hold up nobody.
// SIGPIPE is ignored from now on. Each line of a message becomes a line of the log; control
// characters are escaped.
//
// Threads: one, before others log. Threads that it starts take no signals.
// Returns: INVALID_ARGUMENT for an unknown level or format; errors of the system if the file cannot
//          be opened.
absl::Status StartProcessLog(const std::string& process, const LogOptions& options);

// Opens --log-file again, which has been renamed meanwhile; nothing without one. If it cannot be
// opened, the log goes on where it was and says so.
void ReopenProcessLog();

// Waits up to a second until all lines are written: to be called before _exit(). exit() and a line
// of level critical do it by themselves.
void FlushProcessLog();

// Lines that were left out since the start.
uint64_t ProcessLogLinesDropped();

}  // namespace retroinfer::common
