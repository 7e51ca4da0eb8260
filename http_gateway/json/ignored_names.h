// The names of what a request asked for and does not get.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace retroinfer::gateway {

// Threads: one at a time.
class IgnoredNames {
 public:
  static constexpr size_t kNamesMax = 16;
  static constexpr size_t kNameBytesMax = 64;

  // `path`: of the field, "messages[3].audio". An index counts for nothing, so that a long
  // conversation has each name once.
  void Add(std::string_view path);

  bool empty() const { return names_.empty(); }
  const std::vector<std::string>& names() const { return names_; }
  // "store, messages[].audio", for a header: printable ASCII. More than kNamesMax end in "...".
  std::string ToString() const;

 private:
  std::vector<std::string> names_;
  bool has_more_ = false;
};

}  // namespace retroinfer::gateway
