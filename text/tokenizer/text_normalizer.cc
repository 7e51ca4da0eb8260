#include "text/tokenizer/text_normalizer.h"

#include <algorithm>
#include <cstdint>

#include "common/status/status_macros.h"
#include "text/tokenizer/nfc.h"

namespace retroinfer {
namespace {

void AppendMarked(std::string_view text, std::string& out) {
  for (const char c : text) {
    if (c == ' ') {
      out.append(kSpaceMark);
    } else {
      out.push_back(c);
    }
  }
}

}  // namespace

absl::StatusOr<std::string> TextNormalizer::NormalizeRun(std::string_view text,
                                                         bool is_first) const {
  std::string composed;
  if (nfc_) {
    ASSIGN_OR_RETURN(composed, NormalizeNfc(text));
    text = composed;
  }
  std::string out;
  if (is_first && marks_.normalizes_front && !text.empty()) out.append(kSpaceMark);
  if (marks_.normalizes_spaces) {
    AppendMarked(text, out);
  } else {
    out.append(text);
  }
  return out;
}

// Normalises run by run; what belongs to which run is known afterwards. An ASCII character composes
// with nothing before it, so runs are cut there; bytes between a run's end and the next such
// character may be special only if both runs may.
absl::StatusOr<SpecialRuns> TextNormalizer::Normalize(std::string_view text,
                                                      const SpecialRuns& special,
                                                      std::string& out) const {
  SpecialRuns runs;
  size_t begin = 0;
  for (const SpecialRuns::Run& run : special.runs()) {
    size_t end = std::max(begin, run.end);
    while (end < text.size() && static_cast<uint8_t>(text[end]) >= 0x80) ++end;
    ASSIGN_OR_RETURN(const std::string normalized,
                     NormalizeRun(text.substr(begin, end - begin), begin == 0));
    runs.Append(normalized.size(), special.Allow(begin, end));
    out.append(normalized);
    begin = end;
  }
  return runs;
}

void TextNormalizer::MarkSpaces(std::string_view text, bool is_first, std::string& out) const {
  const bool in_front = marks_.front == SpaceMarkSpec::Front::kEach ||
                        (marks_.front == SpaceMarkSpec::Front::kFirst && is_first);
  const bool begins_with_mark =
      text.starts_with(kSpaceMark) || (marks_.replaces_spaces && text.starts_with(' '));
  if (in_front && !begins_with_mark) out.append(kSpaceMark);
  if (marks_.replaces_spaces) {
    AppendMarked(text, out);
  } else {
    out.append(text);
  }
}

}  // namespace retroinfer
