// The wire form of what came of commands (proto/retroinfer/executor/v1/step.proto).
//
// Threads: any.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gpu_worker/executor/command_codec.h"
#include "gpu_worker/executor/command_result.h"

namespace retroinfer {

std::string EncodeResult(const CommandResult& result);

// Returns: INVALID_ARGUMENT for a token outside of the vocabulary, a status or an end that there is
//          not, or a list beyond limits.
absl::StatusOr<CommandResult> DecodeResult(std::string_view bytes, const CodecLimits& limits);

}  // namespace retroinfer
