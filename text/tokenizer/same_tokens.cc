#include "text/tokenizer/same_tokens.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace retroinfer {
namespace {

// The token as people can read it, or its beginning.
std::string Describe(const Tokenizer& tokenizer, int32_t id) {
  constexpr size_t kMost = 40;
  const std::string_view bytes = tokenizer.TokenBytes(id);
  return absl::StrCat(tokenizer.IsSpecial(id) ? "the special token \"" : "\"",
                      absl::CHexEscape(std::string(bytes.substr(0, kMost))),
                      bytes.size() > kMost ? "...\"" : "\"");
}

}  // namespace

absl::Status CheckSameTokens(const Tokenizer& wanted, const Tokenizer& given) {
  const int32_t common = std::min(wanted.vocab_size(), given.vocab_size());
  for (int32_t id = 0; id < common; ++id) {
    if (wanted.TokenBytes(id) == given.TokenBytes(id) &&
        wanted.IsSpecial(id) == given.IsSpecial(id)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "token ", id, " is ", Describe(given, id), ", and ", Describe(wanted, id),
        " in the served model: they need the same tokens, as models of one family have them"));
  }
  if (wanted.vocab_size() == given.vocab_size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "it has ", given.vocab_size(), " tokens, and the served model ", wanted.vocab_size(),
      ", which are alike up to the smaller number: they need the same tokens"));
}

}  // namespace retroinfer
