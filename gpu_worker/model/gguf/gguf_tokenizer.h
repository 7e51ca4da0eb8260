// The tokenizer and the chat template that the keys of a GGUF file describe.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "gpu_worker/model/gguf/gguf_files.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_config.h"
#include "text/tokenizer/tokenizer_spec.h"

namespace retroinfer {

// What a tokenizer.json would say. Control tokens are special, but for those that makers of models
// do not call so, though they look like it: what a model writes between them is meant to be seen.
// Unused ids are no tokens.
//
// Returns: UNIMPLEMENTED for a tokenizer other than byte-level BPE (SentencePiece, WordPiece, ...)
//          and for a way to cut texts that is not known; INVALID_ARGUMENT, with the key, for what
//          is missing, mistyped or contradicts itself.
absl::StatusOr<TokenizerSpec> ReadGgufTokenizerSpec(const GgufFiles& files);

// What a tokenizer_config.json would say: the texts of special tokens, and the chat templates.
absl::StatusOr<TokenizerConfig> ReadGgufTokenizerConfig(const GgufFiles& files);

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadGgufTokenizer(const GgufFiles& files);

}  // namespace retroinfer
