// Where a command reads and writes.
#pragma once

#include <unistd.h>

#include <cstdio>

namespace retroinfer::client {

struct Streams {
  std::FILE* in = stdin;
  std::FILE* out = stdout;
  std::FILE* err = stderr;
};

inline bool IsTerminal(std::FILE* stream) {
  const int fd = ::fileno(stream);
  return fd >= 0 && ::isatty(fd) == 1;
}

}  // namespace retroinfer::client
