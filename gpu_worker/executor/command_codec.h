// The wire form of commands (proto/retroinfer/executor/v1/step.proto).
//
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gpu_worker/executor/drawing.h"
#include "gpu_worker/executor/step_command.h"

namespace retroinfer {

// What decoders accept. Messages are hostile until checked.
struct CodecLimits {
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;             // tokens of a prompt, and of a sequence
  size_t max_sequences = 4096;           // entries of a list of sequences
  size_t max_bytes = size_t{256} << 20;  // of a message
};

// For an executor that draws itself or, with Drawing::kElsewhere, one that is not told how tokens
// are drawn.
//
// Returns: UNIMPLEMENTED for a sequence with a constraint and Drawing::kHere: only an executor with
//          the matcher follows it (docs/decisions/0078-a-plan-is-a-message.md).
absl::StatusOr<std::string> EncodeCommand(const StepCommand& command,
                                          Drawing drawing = Drawing::kHere);

// Checks what follows from the values alone: tokens are in the vocabulary, settings in their
// ranges, lists within limits. CommandChecker checks the rest.
//
// Returns: INVALID_ARGUMENT with the first thing that is wrong.
absl::StatusOr<StepCommand> DecodeCommand(std::string_view bytes, const CodecLimits& limits);

}  // namespace retroinfer
