// Whether two tokenizers have the same tokens, so that ids of one say the same to the other.
#pragma once

#include "absl/status/status.h"
#include "text/tokenizer/tokenizer.h"

namespace retroinfer {

// Compares the bytes of all tokens, and which of them are special. How texts are split is not
// compared: ids are what is handed over.
//
// Returns: INVALID_ARGUMENT that names the first token that differs, or the numbers of tokens.
// Cost:    some milliseconds.
absl::Status CheckSameTokens(const Tokenizer& wanted, const Tokenizer& given);

}  // namespace retroinfer
