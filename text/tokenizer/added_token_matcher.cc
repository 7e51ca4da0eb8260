#include "text/tokenizer/added_token_matcher.h"

#include <algorithm>
#include <utility>

#include "common/log/check.h"
#include "text/tokenizer/regex_syntax.h"
#include "text/tokenizer/split_regex.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer {
namespace {

// Whether `character` is in \w of Unicode Technical Standard 18, by the tables of Unicode 16:
// alphabetic characters, marks, decimal numbers, connectors and joiners.
bool IsWordCharacter(std::string_view character) {
  static const SplitRegex* const kWord = [] {
    const absl::StatusOr<std::string> pattern = TranslateRegex(
        R"([\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149})"
        R"(\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}])");
    RI_CHECK(pattern.ok());
    absl::StatusOr<SplitRegex> regex = SplitRegex::Compile(*pattern);
    RI_CHECK(regex.ok());
    return new SplitRegex(*std::move(regex));
  }();
  const auto match = SplitMatcher(*kWord).Find(character, 0);
  return match.ok() && match->has_value();
}

bool TouchesWord(std::string_view text, size_t begin, size_t end) {
  if (begin > 0) {
    const size_t length = LastUtf8(text.substr(0, begin)).length;
    if (IsWordCharacter(text.substr(begin - length, length))) return true;
  }
  return end < text.size() && IsWordCharacter(text.substr(end, NextUtf8(text.substr(end)).length));
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

void AddedTokenMatcher::Split(std::string_view text, const SpecialRuns& special,
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
    if (token.special && !special.Allow(begin, end)) {
      // A token of the template may begin inside, where the match ends in its text.
      offset = std::min(end, special.NextAllowed(begin + 1));
      continue;
    }
    if (token.single_word && TouchesWord(text, begin, end)) continue;
    if (token.lstrip) begin = WhiteSpaceBefore(text, std::min(text_begin, begin), begin);
    if (token.rstrip) end = WhiteSpaceAfter(text, end);
    if (text_begin < begin) out.push_back({text.substr(text_begin, begin - text_begin)});
    out.push_back({text.substr(begin, end - begin), token.id});
    text_begin = offset = end;
  }
  if (text_begin < text.size()) out.push_back({text.substr(text_begin)});
}

}  // namespace retroinfer
