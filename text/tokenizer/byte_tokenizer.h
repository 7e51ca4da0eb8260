// A tokenizer for models that have none: a token for each byte.
#pragma once

#include <cstdint>
#include <memory>

#include "text/tokenizer/tokenizer.h"

namespace retroinfer {

inline constexpr int32_t kByteTokenizerTokens = 256;

// Token ids 0 to 255 are the bytes of UTF-8 text; larger ids have no text. No special tokens.
std::unique_ptr<Tokenizer> CreateByteTokenizer();

}  // namespace retroinfer
