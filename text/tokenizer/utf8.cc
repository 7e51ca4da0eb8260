#include "text/tokenizer/utf8.h"

#include "absl/strings/str_cat.h"
#include "common/log/check.h"

namespace retroinfer {
namespace {

// The length that a lead byte announces, and the range of the byte after it (table 3-7).
struct Lead {
  size_t length;  // 0: no lead byte
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

}  // namespace

Utf8Step NextUtf8(std::string_view text) {
  const auto byte_at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte_at(0);
  if (first < 0x80) return {Utf8Step::Kind::kCharacter, 1, first};
  const Lead lead = LeadOf(first);
  if (lead.length == 0) return {Utf8Step::Kind::kInvalid, 1};
  char32_t code = first & (0xFF >> (lead.length + 1));
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8Step::Kind::kIncomplete, i};
    const uint8_t byte = byte_at(i);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {Utf8Step::Kind::kInvalid, i};
    code = (code << 6) | (byte & 0x3F);
  }
  return {Utf8Step::Kind::kCharacter, lead.length, code};
}

absl::Status ValidateUtf8(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    if (static_cast<uint8_t>(text[offset]) < 0x80) {
      ++offset;
      continue;
    }
    const Utf8Step step = NextUtf8(text.substr(offset));
    if (step.kind != Utf8Step::Kind::kCharacter) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the text is not valid UTF-8: byte 0x",
          absl::Hex(static_cast<uint8_t>(text[offset]), absl::kZeroPad2), " at offset ", offset,
          step.kind == Utf8Step::Kind::kIncomplete ? " begins a character that is cut off"
                                                   : " begins no character"));
    }
    offset += step.length;
  }
  return absl::OkStatus();
}

void AppendUtf8(char32_t code, std::string& out) {
  RI_DCHECK(code <= 0x10FFFF && !(code >= 0xD800 && code <= 0xDFFF));
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

bool IsWhiteSpace(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

Utf8Step LastUtf8(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return NextUtf8(text.substr(begin));
}

void DrainUtf8(std::string& bytes, bool at_end, std::string& text) {
  size_t offset = 0;
  while (offset < bytes.size()) {
    const Utf8Step step = NextUtf8(std::string_view(bytes).substr(offset));
    if (step.kind == Utf8Step::Kind::kCharacter) {
      text.append(bytes, offset, step.length);
    } else if (step.kind == Utf8Step::Kind::kInvalid || at_end) {
      text.append(kReplacementCharacter);
    } else {
      break;
    }
    offset += step.length;
  }
  bytes.erase(0, offset);
}

}  // namespace retroinfer
