// Reads what tokenizers of the SentencePiece kind say of spaces in tokenizer.json.
#pragma once

#include "absl/status/status.h"
#include "common/json/json_reader.h"
#include "text/tokenizer/tokenizer_spec.h"

namespace retroinfer {

// Each returns INVALID_ARGUMENT with the place, if a field has a wrong type or value, or if
// something is not understood.

// Normalizer Prepend of U+2581, or Replace of spaces by U+2581.
absl::Status ReadSpaceNormalizer(const common::JsonReader& value, SpaceMarkSpec& marks);

// Pre-tokenizer Metaspace: its marks, and the split that it makes if it makes one.
absl::Status ReadMetaspace(const common::JsonReader& value, TokenizerSpec& spec);

// The decoder: a sequence of Replace, ByteFallback, Fuse and, in some files, Strip.
absl::Status ReadFallbackDecoder(const common::JsonReader& value, SpaceMarkSpec& marks);

}  // namespace retroinfer
