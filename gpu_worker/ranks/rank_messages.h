// Messages between rank 0 and other ranks, as plain values, and their wire form
// (proto/retroinfer/executor/v1/ranks.proto). Messages are hostile until they are decoded.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/executor/command_codec.h"
#include "gpu_worker/executor/command_result.h"
#include "gpu_worker/executor/step_command.h"

namespace retroinfer {

// What a rank is, once it has its part of the model.
struct RankHello {
  std::string version, revision;  // of the program
  uint32_t rank = 0;
  uint32_t num_ranks = 0;
  std::string fingerprint;  // of the segments that it would write: of the model, backend, settings
  std::string backend;
  std::string device_name;
  uint64_t available_bytes = 0;  // of its device, for all that it allocates
  uint64_t weight_bytes = 0;     // of that, its weights
};

// What all ranks plan their memory by: the least that is available, the most that weights take.
struct SharedPlan {
  uint64_t available_bytes = 0;
  uint64_t weight_bytes = 0;
  uint32_t arena_pages = 0;
  uint64_t draft_weight_bytes = 0;  // of the draft model, which rank 0 has; 0: there is none
};

// The newest rows of a sequence in the step before that do not count: CommandRunner::TakeBack().
struct TakenBack {
  uint64_t id = 0;
  int64_t num_rows = 0;
};

struct RankCommand {
  std::vector<TakenBack> taken_back;  // before the command
  StepCommand command;
};

// A segment whose part of the rank is complete in the arena.
struct WrittenSegment {
  uint64_t holder = 0;  // in whose name the store holds the extent
  uint64_t extent_id = 0;
};

// Sums since the rank's start, and what is now.
struct RankStats {
  uint64_t page_hits = 0, page_misses = 0, page_transients = 0, page_evictions = 0;
  uint64_t arena_bytes_in = 0, arena_bytes_out = 0;
  int64_t slots_used = 0;
  uint64_t device_bytes = 0;
};

struct RankAnswer {
  CommandResult result;  // what is drawn left out
  std::vector<WrittenSegment> written;
  RankStats stats;
};

std::string EncodeHello(const RankHello& hello);
std::string EncodeSharedPlan(const SharedPlan& memory);
// The plan as text: MemoryPlan::ToString().
std::string EncodeReady(std::string_view plan);
std::string EncodeFailure(const absl::Status& status);
// `command` as EncodeCommand(..., Drawing::kElsewhere) has it.
std::string EncodeRankCommand(const std::vector<TakenBack>& taken_back, std::string command);
// Without the tokens of the result: what other ranks than rank 0 draw means nothing.
std::string EncodeAnswer(const RankAnswer& answer);

// Return: INVALID_ARGUMENT for bytes that are none, or the first thing that is wrong.
absl::StatusOr<RankHello> DecodeHello(std::string_view bytes);
absl::StatusOr<SharedPlan> DecodeSharedPlan(std::string_view bytes);
absl::StatusOr<std::string> DecodeReady(std::string_view bytes);
absl::StatusOr<RankCommand> DecodeRankCommand(std::string_view bytes, const CodecLimits& limits);
absl::StatusOr<RankAnswer> DecodeAnswer(std::string_view bytes, const CodecLimits& limits);
// The failure itself; INVALID_ARGUMENT for bytes that are none.
absl::Status DecodeFailure(std::string_view bytes);

}  // namespace retroinfer
