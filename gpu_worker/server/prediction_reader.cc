#include "gpu_worker/server/prediction_reader.h"

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace retroinfer {
namespace {

absl::Status Invalid(const std::string& message) {
  return common::WithReason(absl::InvalidArgumentError(message), "INVALID_REQUEST");
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ReadPrediction(std::string_view text,
                                                    const Tokenizer& tokenizer,
                                                    int64_t max_tokens) {
  if (text.empty()) return std::vector<int32_t>();
  // Before any work.
  const size_t bytes_max = tokenizer.TextBytesMax(static_cast<size_t>(max_tokens));
  if (text.size() > bytes_max) {
    return Invalid(absl::StrCat("prediction has ", text.size(), " bytes; the ", max_tokens,
                                " tokens of this model's context have at most ", bytes_max));
  }
  // As the answer is: nothing of it is special.
  auto tokens = tokenizer.Encode(text, {.add_special = false, .parse_special = false});
  if (!tokens.ok()) {
    return Invalid(absl::StrCat("prediction: ", std::string(tokens.status().message())));
  }
  if (std::ssize(*tokens) > max_tokens) {
    return Invalid(absl::StrCat("prediction has ", tokens->size(), " tokens; at most ", max_tokens,
                                " are allowed, those of this model's context"));
  }
  return tokens;
}

}  // namespace retroinfer
