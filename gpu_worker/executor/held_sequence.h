// A sequence that an executor has been told of, and how far it is.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gpu_worker/executor/sequence.h"

namespace retroinfer {

struct HeldSequence {
  enum class Stage : uint8_t {
    kOpen,      // holds no memory of the device
    kAdmitted,  // holds all that reading the prompt, or its next part, needs
    kReading,   // in a lane
    kPartRead,  // a part of the prompt is computed, which the background has yet to finish
    kRead,      // the prompt is computed; rows may be left to measure
    kDecoding,
    kLeaving,    // KV is copied out of blocks that the sequence still holds
    kSuspended,  // KV is in host memory
    kReturning,  // KV is copied back into blocks that the sequence holds again
  };

  Sequence sequence;
  std::vector<int32_t> prompt;  // sequence.kv.prompt, then its given tokens
  SamplingParams sampling;      // until it is admitted
  std::vector<int32_t> eos_token_ids;
  std::vector<int32_t> first_targets;
  Stage stage = Stage::kOpen;
  bool is_dropped = false;
  // Tokens, prompt and generated, that are known to fit into the blocks that it holds.
  int64_t reach = 0;
  int64_t num_drafts = 0;  // rows of its last step that may not count (CommandRunner::TakeBack)

  bool draws() const { return first_targets.empty(); }
};

using HeldSequences = absl::flat_hash_map<uint64_t, std::unique_ptr<HeldSequence>>;  // by id

}  // namespace retroinfer
