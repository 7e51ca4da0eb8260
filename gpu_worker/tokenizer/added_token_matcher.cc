#include "gpu_worker/tokenizer/added_token_matcher.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "common/log/check.h"
#include "gpu_worker/tokenizer/utf8.h"

namespace retroinfer {
namespace {

// \w of Unicode Technical Standard 18: alphabetic, marks, decimal numbers, connectors and joiners.
bool IsWordCharacter(char32_t code) {
  if (code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9) ||
      (code >= 0x1F130 && code <= 0x1F149) || (code >= 0x1F150 && code <= 0x1F169) ||
      (code >= 0x1F170 && code <= 0x1F189)) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool TouchesWord(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && IsWordCharacter(LastUtf8(text.substr(0, begin)).code)) ||
         (end < text.size() && IsWordCharacter(NextUtf8(text.substr(end)).code));
}

// The offset at which the white space before `end` begins, but not before `floor`.
size_t WhiteSpaceBefore(std::string_view text, size_t floor, size_t end) {
  while (end > floor) {
    const Utf8Step step = LastUtf8(text.substr(floor, end - floor));
    if (!IsWhiteSpace(step.code)) break;
    end -= step.length;
  }
  return end;
}

size_t WhiteSpaceAfter(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Step step = NextUtf8(text.substr(begin));
    if (!IsWhiteSpace(step.code)) break;
    begin += step.length;
  }
  return begin;
}

uint64_t ChildKey(int32_t node, char byte) {
  return (static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(byte);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedTokenSpec> tokens)
    : tokens_(std::move(tokens)), nodes_(1), is_first_byte_(256, false) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& content = tokens_[i].content;
    RI_CHECK(!content.empty());
    is_first_byte_[static_cast<uint8_t>(content[0])] = true;
    int32_t node = 0;
    for (const char byte : content) {
      const auto [child, inserted] =
          children_.try_emplace(ChildKey(node, byte), static_cast<int32_t>(nodes_.size()));
      node = child->second;
      if (inserted) nodes_.emplace_back();
    }
    RI_CHECK(nodes_[static_cast<size_t>(node)].token_index == kNone);
    nodes_[static_cast<size_t>(node)].token_index = static_cast<int32_t>(i);
  }
}

int32_t AddedTokenMatcher::LongestAt(std::string_view text) const {
  int32_t node = 0;
  int32_t longest = kNone;
  for (const char byte : text) {
    const auto child = children_.find(ChildKey(node, byte));
    if (child == children_.end()) break;
    node = child->second;
    const int32_t index = nodes_[static_cast<size_t>(node)].token_index;
    if (index != kNone) longest = index;
  }
  return longest;
}

void AddedTokenMatcher::Split(std::string_view text, bool parse_special,
                              std::vector<TextSegment>& out) const {
  size_t text_begin = 0;  // of the text that is no token, so far
  size_t offset = 0;
  while (offset < text.size()) {
    if (!is_first_byte_[static_cast<uint8_t>(text[offset])]) {
      ++offset;
      continue;
    }
    const int32_t index = LongestAt(text.substr(offset));
    if (index == kNone) {
      ++offset;
      continue;
    }
    const AddedTokenSpec& token = tokens_[static_cast<size_t>(index)];
    size_t begin = offset;
    size_t end = offset + token.content.size();
    offset = end;  // a match that does not count is passed over as a whole
    if (token.special && !parse_special) continue;
    if (token.single_word && TouchesWord(text, begin, end)) continue;
    if (token.lstrip) begin = WhiteSpaceBefore(text, std::min(text_begin, begin), begin);
    if (token.rstrip) end = WhiteSpaceAfter(text, end);
    if (text_begin < begin) out.push_back({text.substr(text_begin, begin - text_begin)});
    out.push_back({text.substr(begin, end - begin), token.id});
    text_begin = end;
  }
  if (text_begin < text.size()) out.push_back({text.substr(text_begin)});
}

}  // namespace retroinfer
