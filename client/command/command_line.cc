#include "client/command/command_line.h"

#include <cerrno>

#include "common/status/errno_status.h"

namespace retroinfer::client {

int Fail(const Streams& streams, const std::string& command, const std::string& message,
         int exit_code) {
  std::fprintf(streams.err, "retroinfer %s: %s\n", command.c_str(), message.c_str());
  return exit_code;
}

absl::Status WriteResults(std::string_view text, std::FILE* stream) {
  errno = 0;
  // A text that is longer than the stream's buffer is written at once, others by the flush.
  if (std::fwrite(text.data(), 1, text.size(), stream) == text.size() && std::fflush(stream) == 0 &&
      std::ferror(stream) == 0) {
    return absl::OkStatus();
  }
  // An earlier error has left no number.
  return errno == 0 ? absl::UnavailableError("cannot write the standard output")
                    : common::ErrnoStatus(errno, "writing the standard output");
}

absl::Status FlushResults(std::FILE* stream) { return WriteResults("", stream); }

std::optional<int> ParseSilently(common::Settings& settings, int argc, const char* const* argv,
                                 const Streams& streams) {
  settings.app().name(std::string("retroinfer ") + argv[0]);
  const auto outcome = settings.Parse(argc, argv);
  if (!outcome.ok()) {
    return Fail(streams, argv[0], std::string(outcome.status().message()), kExitUsage);
  }
  if (*outcome == common::Settings::Outcome::kExit) return kExitOk;
  return std::nullopt;
}

std::optional<int> ParseArguments(common::Settings& settings, int argc, const char* const* argv,
                                  const Streams& streams) {
  if (const auto done = ParseSilently(settings, argc, argv, streams)) return done;
  for (const std::string& warning : settings.warnings()) {
    std::fprintf(streams.err, "retroinfer %s: warning: %s\n", argv[0], warning.c_str());
  }
  return std::nullopt;
}

}  // namespace retroinfer::client
