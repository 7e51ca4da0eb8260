// The text of a stream's chunks, before it is sent.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace retroinfer::gateway {

// Chunks differ in one JSON object each; what is around it is the same in all of a stream, and is
// written by memcpy. The buffer is used again for every token.
//
// Threads: one at a time.
class ChunkWriter {
 public:
  // `begin` and `end` come before and behind each object.
  ChunkWriter(std::string begin, std::string end)
      : begin_(std::move(begin)), end_(std::move(end)) {}

  // Begins a chunk; its object is to be appended to the result, then End() called.
  std::string* Begin() {
    text_.append(begin_);
    return &text_;
  }
  void End() { text_.append(end_); }
  // Appends what is no such chunk.
  void AppendRaw(std::string_view text) { text_.append(text); }

  std::string_view text() const { return text_; }
  void Clear() {
    if (text_.capacity() > kKeptBytes) {
      std::string().swap(text_);
    } else {
      text_.clear();
    }
  }

 private:
  static constexpr size_t kKeptBytes = 4 << 10;

  const std::string begin_;
  const std::string end_;
  std::string text_;
};

}  // namespace retroinfer::gateway
