// Shows on stderr how far a load test is.
#pragma once

#include <cstdint>
#include <cstdio>

#include "absl/time/time.h"

namespace retroinfer::client {

// Rewrites one line on a terminal, at most five times a second; elsewhere writes a line every ten
// seconds, so that a log shows that the test goes on.
//
// Threads: one at a time.
class LoadProgressLine {
 public:
  // Of `total` requests, the first of them sent at `begin`.
  LoadProgressLine(std::FILE* out, bool is_terminal, int64_t total, absl::Time begin)
      : out_(out),
        is_terminal_(is_terminal),
        total_(total),
        begin_(begin),
        last_line_(is_terminal ? absl::InfinitePast() : begin) {}
  // Ends the line on a terminal.
  ~LoadProgressLine();
  LoadProgressLine(const LoadProgressLine&) = delete;
  LoadProgressLine& operator=(const LoadProgressLine&) = delete;

  // `done` requests have ended at `now`. The last line (all requests) is always shown on a
  // terminal.
  void Show(int64_t done, absl::Time now);

 private:
  std::FILE* const out_;
  const bool is_terminal_;
  const int64_t total_;
  const absl::Time begin_;
  absl::Time last_line_;
  int64_t last_done_ = -1;
};

}  // namespace retroinfer::client
