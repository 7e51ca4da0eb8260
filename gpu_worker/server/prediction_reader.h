// Reads what a client predicts of its answer.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "text/tokenizer/tokenizer.h"

namespace retroinfer {

// GenerationRequest::prediction of the text.
//
// Returns: INVALID_ARGUMENT if it has more than `max_tokens`, or is no UTF-8.
// Threads: any.
absl::StatusOr<std::vector<int32_t>> ReadPrediction(std::string_view text,
                                                    const Tokenizer& tokenizer, int64_t max_tokens);

}  // namespace retroinfer
