#include "http_gateway/json/json_string_reader.h"

#include <string_view>

#include "absl/strings/ascii.h"

namespace retroinfer::gateway {
namespace {

constexpr std::string_view kEscapes = "\"\\/bfnrt";
constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
constexpr uint32_t kReplacement = 0xFFFD;

void AppendUtf8(uint32_t code, std::string* out) {
  if (code < 0x80) {
    out->push_back(static_cast<char>(code));
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  const uint32_t lead = 0xFF00U >> (more + 1) & 0xFFU;
  out->push_back(static_cast<char>(lead | code >> 6 * more));
  for (int i = more - 1; i >= 0; --i) {
    out->push_back(static_cast<char>(0x80U | (code >> 6 * i & 0x3FU)));
  }
}

uint32_t HexDigit(char c) {
  if (c <= '9') return static_cast<uint32_t>(c - '0');
  return static_cast<uint32_t>(absl::ascii_tolower(static_cast<unsigned char>(c)) - 'a' + 10);
}

}  // namespace

JsonStringReader::Verdict JsonStringReader::Take(char c, std::string* out) {
  if (hex_left_ > 0) return TakeHex(c, out);
  if (escaped_) {
    escaped_ = false;
    if (c == 'u') {
      hex_left_ = 4;
      code_ = 0;
      return Verdict::kMore;
    }
    EndHalf(out);
    const size_t found = kEscapes.find(c);
    if (found == std::string_view::npos) return Verdict::kInvalid;
    out->push_back(kMeanings[found]);
    return Verdict::kMore;
  }
  if (c == '\\') {
    escaped_ = true;
    return Verdict::kMore;
  }
  EndHalf(out);
  if (c == '"') return Verdict::kEnd;
  out->push_back(c);
  return Verdict::kMore;
}

JsonStringReader::Verdict JsonStringReader::TakeHex(char c, std::string* out) {
  if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return Verdict::kInvalid;
  code_ = code_ << 4 | HexDigit(c);
  if (--hex_left_ > 0) return Verdict::kMore;
  const bool is_low = code_ >= 0xDC00 && code_ < 0xE000;
  if (is_low && high_half_ != 0) {
    AppendUtf8(0x10000 + ((high_half_ - 0xD800) << 10) + (code_ - 0xDC00), out);
    high_half_ = 0;
    return Verdict::kMore;
  }
  EndHalf(out);
  if (code_ >= 0xD800 && code_ < 0xDC00) {
    high_half_ = code_;
  } else {
    AppendUtf8(is_low ? kReplacement : code_, out);
  }
  return Verdict::kMore;
}

void JsonStringReader::EndHalf(std::string* out) {
  if (high_half_ != 0) AppendUtf8(kReplacement, out);
  high_half_ = 0;
}

}  // namespace retroinfer::gateway
