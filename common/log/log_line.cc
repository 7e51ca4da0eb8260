#include "common/log/log_line.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace retroinfer::common {
namespace {

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

void AppendEscaped(std::string_view text, std::string* out) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 && c != '\t') {
      absl::StrAppendFormat(out, "\\x%02x", byte);
    } else {
      out->push_back(c);
    }
  }
}

}  // namespace

std::string TextLogLines(const LogRecord& record) {
  const std::string head = absl::StrFormat("%s %s %s: ", TimeText(record.time),
                                           std::string(record.level), std::string(record.process));
  std::string lines;
  std::string_view rest = record.message;
  while (!rest.empty() && rest.back() == '\n') rest.remove_suffix(1);
  while (true) {
    const size_t end = rest.find('\n');
    lines += head;
    AppendEscaped(rest.substr(0, end), &lines);
    lines += '\n';
    if (end == std::string_view::npos) return lines;
    rest.remove_prefix(end + 1);
  }
}

std::string JsonLogLine(const LogRecord& record) {
  const nlohmann::ordered_json json = {{"time", TimeText(record.time)},
                                       {"level", record.level},
                                       {"process", record.process},
                                       {"message", record.message}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace retroinfer::common
