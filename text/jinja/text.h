// Text that knows which of its bytes the template wrote.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace retroinfer::jinja {

// Valid UTF-8, cut into runs by origin. Bytes are the template's if they stand in its own text or
// string literals, or in variables that the caller vouches for; what comes from a conversation is
// not, and neither is what is computed (numbers, punctuation of JSON). Cutting, joining and
// replacing keep the origin of each byte.
class Text {
 public:
  struct Run {
    size_t end;  // the offset behind it; it begins where the run before it ends
    bool of_template;
    bool operator==(const Run&) const = default;
  };

  Text() = default;
  Text(std::string_view bytes, bool of_template) { Append(bytes, of_template); }

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // None of them empty; neighbours differ in origin; the last one ends at size().
  std::span<const Run> runs() const { return runs_; }

  void Reserve(size_t num_bytes) { bytes_.reserve(num_bytes); }
  void Append(std::string_view bytes, bool of_template);
  void Append(const Text& text) { AppendPart(text, 0, text.size()); }
  // Appends the bytes [begin, end) of `text`.
  //
  // REQUIRES: begin <= end <= text.size(); &text != this.
  void AppendPart(const Text& text, size_t begin, size_t end);
  Text Part(size_t begin, size_t end) const;

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

}  // namespace retroinfer::jinja
