// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace retroinfer::client {

// "1,234,567".
inline std::string WithThousands(int64_t value) {
  std::string text = std::to_string(value);
  const int64_t first = value < 0 ? 1 : 0;
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > first; at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return text;
}

}  // namespace retroinfer::client
