// Reads tokenizer.json of Hugging Face tokenizers.
#pragma once

#include "absl/status/statusor.h"
#include "common/json/json_reader.h"
#include "text/tokenizer/tokenizer_spec.h"

namespace retroinfer {

// Large vocabularies take 17 to 34 MB. No limit on values but what the size allows: a vocabulary is
// all small values.
inline constexpr common::JsonLimits kTokenizerJson = {
    .bytes_max = size_t{64} << 20, .values_max = size_t{64} << 20, .depth_max = 64};

// Returns what the file says. Understood: model BPE over bytes, with pre-tokenizers Split (removed,
// isolated), ByteLevel, Digits and sequences of them that end with ByteLevel, and decoder
// ByteLevel; model BPE with byte_fallback, with normalizers Prepend and Replace of spaces,
// pre-tokenizers none, Metaspace, Split, Digits and sequences, and a decoder of Replace,
// ByteFallback, Fuse and Strip; normalizer NFC; post-processors TemplateProcessing, ByteLevel and
// sequences. Truncation and padding are settings of a call and are passed over: a prompt is never
// cut.
//
// Returns: INVALID_ARGUMENT with the place, if a field has a wrong type, or if a feature or a field
//          is not understood: a text would silently get other ids.
absl::StatusOr<TokenizerSpec> ReadTokenizerJson(const common::JsonReader& root);

}  // namespace retroinfer
