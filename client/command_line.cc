#include "client/command_line.h"

namespace retroinfer::client {

int Fail(const Streams& streams, const std::string& command, const std::string& message,
         int exit_code) {
  std::fprintf(streams.err, "retroinfer %s: %s\n", command.c_str(), message.c_str());
  return exit_code;
}

std::optional<int> ParseArguments(common::Settings& settings, int argc, const char* const* argv,
                                  const Streams& streams) {
  settings.app().name(std::string("retroinfer ") + argv[0]);
  const auto outcome = settings.Parse(argc, argv);
  if (!outcome.ok()) {
    return Fail(streams, argv[0], std::string(outcome.status().message()), kExitUsage);
  }
  if (*outcome == common::Settings::Outcome::kExit) return kExitOk;
  return std::nullopt;
}

}  // namespace retroinfer::client
