// The form of a line in a log.
#pragma once

#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace retroinfer::common {

struct LogRecord {
  absl::Time time;
  std::string_view level;    // "info"
  std::string_view process;  // "gpu_worker"
  std::string_view message;
};

// "2026-11-22T03:19:46.120Z info gpu_worker: message" and a newline. A message of several lines
// gives as many lines, each with all of that before it; other control characters are written as
// "\x1b", so that no message can look like another line or steer a terminal.
std::string TextLogLines(const LogRecord& record);

// One JSON object with the members time, level, process and message, and a newline. Bytes that are
// not UTF-8 become U+FFFD.
std::string JsonLogLine(const LogRecord& record);

}  // namespace retroinfer::common
