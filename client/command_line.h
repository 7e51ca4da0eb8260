// What all subcommands do with their arguments.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/exit_code.h"
#include "client/streams.h"
#include "common/config/settings.h"

namespace retroinfer::client {

// Prints "retroinfer <command>: <message>" and returns `exit_code`.
int Fail(const Streams& streams, const std::string& command, const std::string& message,
         int exit_code);

// Returns OK if all that was written to `stream` has arrived; otherwise why not.
absl::Status FlushResults(std::FILE* stream);

// Parses, and warns of what looks like a mistake in the environment; returns the exit code if the
// command is done (help, or a usage error that is printed).
std::optional<int> ParseArguments(common::Settings& settings, int argc, const char* const* argv,
                                  const Streams& streams);

}  // namespace retroinfer::client
