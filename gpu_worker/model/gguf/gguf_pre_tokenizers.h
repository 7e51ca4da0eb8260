// How GGUF files name the patterns that cut a text into pieces before byte-pair encoding.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace retroinfer {

// What a name (key tokenizer.ggml.pre) stands for: the settings of the tokenizer.json of the models
// that it is written for.
struct GgufPreTokenizer {
  std::vector<std::string_view> patterns;  // of Oniguruma; each cuts the pieces of the one before
  bool nfc = false;
  bool ignore_merges = false;  // a piece that is a token as a whole is not merged from bytes
  bool add_bos = false;        // where the file does not say
};

// Returns: UNIMPLEMENTED, with the names that are known, for another one.
absl::StatusOr<GgufPreTokenizer> GgufPreTokenizerNamed(std::string_view name);

}  // namespace retroinfer
