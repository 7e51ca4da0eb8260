// Which special tokens are in the text of an answer.
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/executor/sampling_params.h"
#include "retroinfer/generation/v1/generation.pb.h"
#include "text/tokenizer/tokenizer.h"

namespace retroinfer {

// Reads skip_special_tokens and shown_special_tokens. Names that are no special tokens of the
// vocabulary change nothing.
//
// Returns: INVALID_ARGUMENT, INVALID_SAMPLING, for too many names, or one that is too long.
absl::Status ReadSpecialTokens(const Tokenizer& tokenizer,
                               const generation::v1::SamplingOptions& options,
                               SamplingParams* sampling);

}  // namespace retroinfer
