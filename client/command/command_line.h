// What all subcommands do with their arguments.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "client/command/exit_code.h"
#include "client/command/streams.h"
#include "common/config/settings.h"

namespace retroinfer::client {

// Prints "retroinfer <command>: <message>" and returns `exit_code`.
int Fail(const Streams& streams, const std::string& command, const std::string& message,
         int exit_code);

// Writes and flushes. Returns OK if all that was ever written to `stream` has arrived; otherwise
// why not.
absl::Status WriteResults(std::string_view text, std::FILE* stream);
absl::Status FlushResults(std::FILE* stream);  // WriteResults() of nothing

// Parses; returns the exit code if the command is done (help, or a usage error that is printed).
std::optional<int> ParseSilently(common::Settings& settings, int argc, const char* const* argv,
                                 const Streams& streams);
// The same, and prints the warnings of what looks like a mistake in the environment. Commands that
// have a log use ParseSilently() and log them: a stderr that nobody reads must not hold them up.
std::optional<int> ParseArguments(common::Settings& settings, int argc, const char* const* argv,
                                  const Streams& streams);

}  // namespace retroinfer::client
