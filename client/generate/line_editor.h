// Lines from a person at a terminal, with editing and a history.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

namespace retroinfer::client {

// libedit: the keys of Emacs, arrows, and the lines before with the arrow up. The history ends with
// the object: what people write is not kept.
//
// Threads: one; Interrupt() any.
class LineEditor {
 public:
  enum class Result { kLine, kInterrupted, kEnd };

  // `in` and `out` are terminals. Returns nullptr if the terminal cannot be used.
  static std::unique_ptr<LineEditor> Create(std::FILE* in, std::FILE* out, std::string prompt);
  virtual ~LineEditor() = default;

  // Shows the prompt and reads a line, without its end, into `*line`. kInterrupted: Interrupt() was
  // called meanwhile, and what was written is gone. kEnd: Ctrl-D, or the terminal has gone.
  virtual Result ReadLine(std::string* line) = 0;
  virtual void Interrupt() = 0;
};

}  // namespace retroinfer::client
