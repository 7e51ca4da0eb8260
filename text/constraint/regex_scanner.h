// The characters, escapes and classes of a regular expression.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "text/constraint/code_point_set.h"

namespace retroinfer::constraint {

// Threads: one at a time.
class RegexScanner {
 public:
  // REQUIRES: `text` is UTF-8 and outlives the scanner.
  explicit RegexScanner(std::string_view text) : text_(text) {}

  size_t offset() const { return offset_; }
  bool AtEnd() const { return offset_ == text_.size(); }
  std::string_view rest() const { return text_.substr(offset_); }
  bool Take(std::string_view expected);
  // The next character.
  //
  // REQUIRES: !AtEnd().
  char32_t Next();
  // A decimal number, or nothing; at most 10^9.
  std::optional<int64_t> TakeNumber();

  // Reads what follows a backslash outside of a class.
  absl::StatusOr<CodePointSet> Escape();
  // Reads what follows a [, with the ].
  absl::StatusOr<CodePointSet> Class();

  // An error at the offset.
  absl::Status Error(std::string_view problem) const;

 private:
  // A class escape, or one character.
  struct Item {
    CodePointSet set;
    std::optional<char32_t> single;
  };

  absl::StatusOr<Item> EscapedItem(bool in_class);
  absl::StatusOr<Item> ClassItem();
  absl::StatusOr<char32_t> HexEscape(char kind);
  std::optional<char32_t> TakeHex(size_t num_digits);

  std::string_view text_;
  size_t offset_ = 0;
};

}  // namespace retroinfer::constraint
