#include "gpu_worker/server/special_tokens.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace retroinfer {
namespace {

constexpr int kShownMax = 16;
constexpr size_t kNameBytesMax = 256;

}  // namespace

absl::Status ReadSpecialTokens(const Tokenizer& tokenizer,
                               const generation::v1::SamplingOptions& options,
                               SamplingParams* sampling) {
  if (options.has_skip_special_tokens()) {
    sampling->skip_special_tokens = options.skip_special_tokens();
  }
  if (options.shown_special_tokens_size() > kShownMax) {
    return common::WithReason(absl::InvalidArgumentError(absl::StrCat(
                                  "shown_special_tokens has ", options.shown_special_tokens_size(),
                                  " names, at most ", kShownMax, " are allowed")),
                              "INVALID_SAMPLING");
  }
  sampling->shown_special_ids.clear();
  for (const std::string& name : options.shown_special_tokens()) {
    if (name.size() > kNameBytesMax) {
      return common::WithReason(absl::InvalidArgumentError(absl::StrCat(
                                    "shown_special_tokens has a name of ", name.size(),
                                    " bytes, at most ", kNameBytesMax, " are allowed")),
                                "INVALID_SAMPLING");
    }
    const std::optional<int32_t> id = tokenizer.SpecialId(name);
    if (id.has_value()) sampling->shown_special_ids.push_back(*id);
  }
  return absl::OkStatus();
}

}  // namespace retroinfer
