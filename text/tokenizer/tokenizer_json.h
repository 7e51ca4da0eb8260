// Reads tokenizer.json of Hugging Face tokenizers.
#pragma once

#include "absl/status/statusor.h"
#include "text/tokenizer/json_file.h"
#include "text/tokenizer/tokenizer_spec.h"

namespace retroinfer {

// Returns what the file says. Understood: model BPE over bytes; pre-tokenizers Split (removed,
// isolated), ByteLevel, Digits and sequences of them that end with ByteLevel; normalizer NFC;
// post-processors TemplateProcessing, ByteLevel and sequences; decoder ByteLevel. Truncation and
// padding are settings of a call and are passed over: a prompt is never cut.
//
// Returns: INVALID_ARGUMENT with the place, if a field has a wrong type, or if a feature or a field
//          is not understood: a text would silently get other ids.
absl::StatusOr<TokenizerSpec> ReadTokenizerJson(const JsonFile& file);

}  // namespace retroinfer
