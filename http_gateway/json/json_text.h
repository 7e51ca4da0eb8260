// Writes JSON by hand where that is done for every token.
#pragma once

#include <string>
#include <string_view>

namespace retroinfer::gateway {

// Appends `text` as a JSON string with its quotes. Line ends and other control characters are
// escaped, so that the result is one line.
//
// REQUIRES: `text` is UTF-8.
inline void AppendJsonString(std::string_view text, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  out->push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (c == '\n') {
      out->append("\\n");
    } else if (byte < 0x20 || byte == 0x7f) {
      out->append("\\u00");
      out->push_back(kHex[byte >> 4]);
      out->push_back(kHex[byte & 15]);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

inline std::string JsonString(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

}  // namespace retroinfer::gateway
