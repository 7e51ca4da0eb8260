#include "text/tokenizer/incremental_detokenizer.h"

#include <algorithm>

#include "text/tokenizer/utf8.h"

namespace retroinfer {

std::string IncrementalDetokenizer::Append(int32_t token) {
  std::string text;
  if (skip_special_ && tokenizer_->IsSpecial(token) &&
      std::find(shown_.begin(), shown_.end(), token) == shown_.end()) {
    return text;
  }
  pending_.append(tokenizer_->TokenBytes(token));
  DrainUtf8(pending_, false, text);
  return text;
}

std::string IncrementalDetokenizer::Flush() {
  std::string text;
  DrainUtf8(pending_, true, text);
  return text;
}

}  // namespace retroinfer
