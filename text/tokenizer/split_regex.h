// A compiled pre-tokenizer pattern.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;

namespace retroinfer {

// Threads: immutable; any number of matchers may use it at once.
class SplitRegex {
 public:
  // Compiles `pattern`, in the PCRE2 syntax that TranslateRegex() writes.
  //
  // Returns: INVALID_ARGUMENT if PCRE2 refuses it, or if it matches the empty string.
  static absl::StatusOr<SplitRegex> Compile(std::string_view pattern);

  const pcre2_real_code_8* code() const { return code_.get(); }

 private:
  struct CodeDeleter {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit SplitRegex(pcre2_real_code_8* code) : code_(code) {}

  std::unique_ptr<pcre2_real_code_8, CodeDeleter> code_;
};

// Finds the matches of one pattern, one after the other; holds the memory that a search needs.
//
// Threads: one at a time.
class SplitMatcher {
 public:
  struct Match {
    size_t begin;  // byte offsets into the subject
    size_t end;
  };

  // REQUIRES: `regex` outlives the matcher.
  explicit SplitMatcher(const SplitRegex& regex);

  // Returns the leftmost match in `subject` that begins at `from` or later; nothing if there is
  // none. Look-ahead sees no further than the end of `subject`.
  //
  // REQUIRES: `subject` is valid UTF-8; `from` is at the beginning of a character.
  // Returns:  RESOURCE_EXHAUSTED if the pattern needs too many steps for this text.
  absl::StatusOr<std::optional<Match>> Find(std::string_view subject, size_t from);

 private:
  struct MatchDataDeleter {
    void operator()(pcre2_real_match_data_8* data) const;
  };
  struct MatchContextDeleter {
    void operator()(pcre2_real_match_context_8* context) const;
  };

  const SplitRegex* regex_;
  std::unique_ptr<pcre2_real_match_data_8, MatchDataDeleter> data_;
  std::unique_ptr<pcre2_real_match_context_8, MatchContextDeleter> context_;
};

}  // namespace retroinfer
