// Makes of a text the one that a tokenizer cuts into pieces.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "text/tokenizer/special_runs.h"
#include "text/tokenizer/tokenizer_spec.h"

namespace retroinfer {

// U+2581, which stands for a space in vocabularies of the SentencePiece kind.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// Threads: immutable after construction.
class TextNormalizer {
 public:
  TextNormalizer(bool nfc, SpaceMarkSpec marks) : nfc_(nfc), marks_(marks) {}

  // Whether Normalize() changes anything.
  bool normalizes() const { return nfc_ || marks_.normalizes_front || marks_.normalizes_spaces; }
  // Whether MarkSpaces() changes anything.
  bool marks_spaces() const {
    return marks_.replaces_spaces || marks_.front != SpaceMarkSpec::Front::kNone;
  }

  // Appends to `out` the text in which added tokens that want a normalised text are searched for.
  // `special`: which bytes of `text` may be special; the result is that of the bytes of `out`.
  //
  // REQUIRES: `text` is valid UTF-8; `out` is empty.
  // Returns:  as NormalizeNfc.
  absl::StatusOr<SpecialRuns> Normalize(std::string_view text, const SpecialRuns& special,
                                        std::string& out) const;

  // Appends to `out` what pre-tokenizer Metaspace makes of a text between added tokens, which is
  // not empty. `is_first`: nothing is before the text.
  void MarkSpaces(std::string_view text, bool is_first, std::string& out) const;

 private:
  absl::StatusOr<std::string> NormalizeRun(std::string_view text, bool is_first) const;

  bool nfc_;
  SpaceMarkSpec marks_;
};

}  // namespace retroinfer
