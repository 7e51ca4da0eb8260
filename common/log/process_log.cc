#include "common/log/process_log.h"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/sinks/sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/config/settings.h"
#include "common/files/named_stream.h"
#include "common/log/library_log.h"
#include "common/log/log_line.h"
#include "common/log/log_writer.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr absl::Duration kFlushTimeout = absl::Seconds(1);

std::string_view LevelName(spdlog::level::level_enum level) {
  if (level <= spdlog::level::debug) return "debug";
  if (level == spdlog::level::info) return "info";
  return level == spdlog::level::warn ? "warning" : "error";
}

// How this process's lines look.
struct LineStyle {
  std::string process;
  bool json = false;

  std::string Line(absl::Time time, std::string_view level, std::string_view message) const {
    const LogRecord record{time, level, process, message};
    return json ? JsonLogLine(record) : TextLogLines(record);
  }
};

LogWriter::Options WriterOptions(const LineStyle& style) {
  return {.describe_dropped = [style](uint64_t num) {
    return style.Line(absl::Now(), "warning",
                      absl::StrCat(num,
                                   " lines are missing here: the log was not read, or could "
                                   "not be written"));
  }};
}

// Gives spdlog's messages to a LogWriter.
class ProcessLog final : public spdlog::sinks::sink {
 public:
  ProcessLog(const std::string& process, LogOptions options, UniqueFd fd)
      : options_(std::move(options)),
        style_{process, options_.format == "json"},
        writer_(std::move(fd), WriterOptions(style_)) {}

  void log(const spdlog::details::log_msg& message) override {
    writer_.Write(style_.Line(absl::FromChrono(message.time), LevelName(message.level),
                              {message.payload.data(), message.payload.size()}));
  }
  void flush() override { writer_.Flush(kFlushTimeout); }
  void set_pattern(const std::string& /*pattern*/) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter> /*formatter*/) override {}

  const LogOptions& options() const { return options_; }
  LogWriter& writer() { return writer_; }

 private:
  const LogOptions options_;
  const LineStyle style_;
  LogWriter writer_;
};

// Set once; never destroyed, since threads may log until the process ends.
std::shared_ptr<ProcessLog>& TheLog() {
  static auto* const log = new std::shared_ptr<ProcessLog>();
  return *log;
}

absl::StatusOr<UniqueFd> OpenTarget(const LogOptions& options) {
  const std::string& path = options.file;
  if (!path.empty()) {
    absl::StatusOr<UniqueFd> file = OpenNamedOutput(path, O_WRONLY | O_CREAT | O_APPEND, 0640);
    if (file.ok()) return file;
    return absl::Status(file.status().code(),
                        absl::StrCat("the log file: ", file.status().message()));
  }
  UniqueFd fd(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  if (!fd.valid()) return ErrnoStatus(errno, "using stderr for the log");
  return fd;
}

}  // namespace

void AddLogOptions(Settings* settings, LogOptions* options) {
  CLI::App& app = settings->app();
  const char* const group = "Log";
  app.add_option("--log-level", options->level, "Least level that is logged")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->group(group);
  app.add_option("--log-format", options->format, "text, or json: an object a line")
      ->check(CLI::IsMember({"text", "json"}))
      ->group(group);
  app.add_option("--log-file", options->file,
                 "File to append to instead of stderr; opened again on SIGHUP")
      ->group(group);
}

absl::Status StartProcessLog(const std::string& process, const LogOptions& options) {
  const spdlog::level::level_enum level = spdlog::level::from_str(options.level);
  if (level == spdlog::level::off || (options.format != "text" && options.format != "json")) {
    return absl::InvalidArgumentError(absl::StrCat("there is no log of level '", options.level,
                                                   "' and format '", options.format, "'"));
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files is an error like a full disk
  ASSIGN_OR_RETURN(UniqueFd fd, OpenTarget(options));
  if (TheLog() == nullptr) std::atexit(FlushProcessLog);
  TheLog() = std::make_shared<ProcessLog>(process, options, std::move(fd));
  auto logger = std::make_shared<spdlog::logger>(process, TheLog());
  logger->set_level(level);
  logger->flush_on(spdlog::level::critical);  // what comes before the end
  spdlog::set_default_logger(std::move(logger));
  TakeLogsOfLibraries();
  return absl::OkStatus();
}

void ReopenProcessLog() {
  if (TheLog() == nullptr || TheLog()->options().file.empty()) return;
  absl::StatusOr<UniqueFd> fd = OpenTarget(TheLog()->options());
  if (!fd.ok()) {
    spdlog::error("{}; the log goes on in the old file", std::string(fd.status().message()));
    return;
  }
  TheLog()->writer().Replace(*std::move(fd));
  spdlog::info("opened the log file again");
}

void FlushProcessLog() {
  if (TheLog() != nullptr) TheLog()->writer().Flush(kFlushTimeout);
}

uint64_t ProcessLogLinesDropped() {
  return TheLog() == nullptr ? 0 : TheLog()->writer().num_dropped();
}

}  // namespace retroinfer::common
