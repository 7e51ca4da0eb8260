// The words of a grammar: names, literals, classes and counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "text/constraint/code_point_set.h"

namespace retroinfer::constraint {

// Threads: one at a time.
class GrammarScanner {
 public:
  // REQUIRES: `text` is UTF-8 and outlives the scanner.
  explicit GrammarScanner(std::string_view text) : text_(text) {}

  // Skips white space, line ends and comments.
  void SkipSpace();
  bool AtEnd() const { return offset_ == text_.size(); }
  bool Take(std::string_view expected);
  // The next byte; 0 at the end.
  char Peek() const { return AtEnd() ? '\0' : text_[offset_]; }
  // A name, or nothing: letters, digits, - and _.
  std::string_view TakeName();
  // Whether a rule begins here: a name, and ::= behind it.
  bool AtRule() const;

  // "..." with its quotes, as UTF-8.
  absl::StatusOr<std::string> Literal();
  // What follows a [, with the ].
  absl::StatusOr<CodePointSet> Class();
  // * + ? {m} {m,} {m,n}: the least and the greatest count, -1 for none. Nothing if there is none.
  absl::StatusOr<std::optional<std::pair<int64_t, int64_t>>> Counts();
  // {...} with what is in it, by the rules of JSON.
  absl::StatusOr<std::string_view> JsonObject();

  size_t line() const;
  // An error at this line.
  absl::Status Error(std::string_view problem) const;

 private:
  absl::StatusOr<char32_t> Character();
  std::optional<int64_t> TakeNumber();

  std::string_view text_;
  size_t offset_ = 0;
};

}  // namespace retroinfer::constraint
