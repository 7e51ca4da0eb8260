// Shows on stderr how far the prefill of a prompt is.
#pragma once

#include <cstdio>
#include <string>

#include "absl/time/time.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::client {

// "prefill 45% (7,372 of 16,384 tokens, 3.2 s, 2,304 tokens/s)".
std::string DescribeProgress(const generation::v1::PrefillProgress& progress);

// Rewrites one line on a terminal, at most five times a second and never wider than the terminal;
// elsewhere writes a line every two seconds. The last line (all tokens) is always shown.
//
// Threads: one at a time.
class PrefillProgressLine {
 public:
  // `out` nullptr: shows nothing.
  PrefillProgressLine(std::FILE* out, bool is_terminal) : out_(out), is_terminal_(is_terminal) {}
  ~PrefillProgressLine() { Clear(); }

  void Show(const generation::v1::PrefillProgress& progress);
  // Takes the line away from a terminal. To be called before other output.
  void Clear();

 private:
  std::FILE* const out_;
  const bool is_terminal_;
  bool shown_ = false;
  absl::Time last_line_ = absl::InfinitePast();
};

}  // namespace retroinfer::client
