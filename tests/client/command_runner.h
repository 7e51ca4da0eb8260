// Runs a command of the client with its streams in memory.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/command/streams.h"
#include "common/log/check.h"

namespace retroinfer::client {

struct CommandResult {
  int exit_code;
  std::string out;
  std::string err;
};

using Command = int (*)(int, const char* const*, const Streams&);

inline CommandResult RunCommand(Command command, std::vector<std::string> arguments,
                                std::string input = "") {
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  char* out = nullptr;
  char* err = nullptr;
  size_t out_size = 0;
  size_t err_size = 0;
  Streams streams;
  // An empty buffer cannot be opened: the end of a line says nothing, too.
  if (input.empty()) input.push_back('\n');
  streams.in = ::fmemopen(input.data(), input.size(), "r");
  streams.out = ::open_memstream(&out, &out_size);
  streams.err = ::open_memstream(&err, &err_size);
  RI_CHECK(streams.in != nullptr && streams.out != nullptr && streams.err != nullptr);
  CommandResult result;
  result.exit_code = command(static_cast<int>(argv.size()), argv.data(), streams);
  std::fclose(streams.in);
  std::fclose(streams.out);
  std::fclose(streams.err);
  result.out.assign(out, out_size);
  result.err.assign(err, err_size);
  std::free(out);
  std::free(err);
  return result;
}

}  // namespace retroinfer::client
