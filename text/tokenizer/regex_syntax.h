// Translates the patterns of tokenizer.json, written for Oniguruma, into PCRE2's syntax.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace retroinfer {

// Returns a PCRE2 pattern (options UTF and UCP) that matches what `pattern` matches in Oniguruma
// with Ruby syntax, which is what Hugging Face tokenizers run.
//
// Understood: literals; \r \n \t \f \e \xHH \x{H..} \uHHHH and escaped punctuation; \s \S \d \D;
// \p{..} and \P{..} of a general category or one of four scripts; classes without nesting;
// alternatives; (..) (?:..) (?i:..) (?=..) (?!..); ? * + (greedy, lazy, possessive), {n} {n,} {n,m}
// (greedy).
//
// Returns: INVALID_ARGUMENT with the offset for anything else: some of it means something different
//          in the two libraries.
absl::StatusOr<std::string> TranslateRegex(std::string_view pattern);

// Returns a PCRE2 pattern that matches `literal` and nothing else.
//
// REQUIRES: `literal` is valid UTF-8.
std::string EscapeLiteral(std::string_view literal);

}  // namespace retroinfer
