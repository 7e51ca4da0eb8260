// Finds a tag in text that comes in pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace retroinfer::gateway {

// Bytes at the end of `text` that may be the beginning of `tag`: they have to wait for more.
inline size_t PartialTagBytes(std::string_view text, std::string_view tag) {
  for (size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (text.substr(text.size() - size) == tag.substr(0, size)) return size;
  }
  return 0;
}

inline constexpr std::string_view kWhiteSpace = " \t\r\n";

// `text` without the white space at its end.
inline std::string_view WithoutTrailingSpace(std::string_view text) {
  const size_t last = text.find_last_not_of(kWhiteSpace);
  return last == std::string_view::npos ? std::string_view() : text.substr(0, last + 1);
}

}  // namespace retroinfer::gateway
