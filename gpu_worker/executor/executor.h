// Carries out on one device what a step plan says of sequences: reads their prompts, decodes and
// measures tokens, copies KV to the host and back; and tells what the device has done. The executor
// decides nothing, and knows no request, no client and no store: the caller says which sequences,
// and gets tokens and errors.
//
// Threads: one at a time, the engine's.
// Owns:    KV memory, policies, block cache, lanes and workspaces. Device, stream and model belong
//          to the caller and outlive the executor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/log/log_rate_limiter.h"
#include "gpu_worker/attention/policy_table.h"
#include "gpu_worker/executor/decode_step.h"
#include "gpu_worker/executor/draft_model.h"
#include "gpu_worker/executor/prefill_lane.h"
#include "gpu_worker/executor/sampler.h"
#include "gpu_worker/executor/sequence.h"
#include "gpu_worker/executor/work_clock.h"
#include "gpu_worker/kv/kv_memory.h"
#include "gpu_worker/kv/partial_segments.h"
#include "gpu_worker/kv/sequence_segments.h"
#include "gpu_worker/kv/suspended_kv.h"
#include "gpu_worker/kv/window_layers.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/wave_buffer/block_cache.h"

namespace retroinfer {

// What an executor works with. Plain pointers are not owned.
struct ExecutorParts {
  Device* device = nullptr;
  Ops* ops = nullptr;
  Stream* stream = nullptr;  // compute
  Transformer* model = nullptr;
  std::unique_ptr<KvMemory> memory;
  std::unique_ptr<WindowLayers> windows;   // null: all layers of the model are indexed
  std::unique_ptr<SuspendedKv> suspended;  // null: no sequence is suspended
  std::unique_ptr<BlockCache> cache;
  std::unique_ptr<PartialSegments> partial;  // null: none is taken
  std::unique_ptr<SequenceSegments> segments;
  std::shared_ptr<void> decoration;  // what decorated policies need
  PolicySet policies;
  std::unique_ptr<DraftModel> draft_model;  // null: there is none
};

class Executor {
 public:
  struct Sizes {
    KvGeometry geometry;
    int32_t max_batch = 0;             // rows of a decode step
    int64_t max_rows = 0;              // of a pass
    std::vector<int64_t> lane_tokens;  // a lane for groups of so many tokens; the longest first
    BlockChoice sparse = kSparsePrefill;
  };
  // Sums since start.
  struct Counters {
    uint64_t decode_steps = 0;
    uint64_t draft_steps = 0;  // of the draft model
    DecodeStep::Counters step;
    PrefillLane::Counters prefill;  // of all lanes
  };

  // Allocates lanes and workspaces. `costs` says what work is expected to take, and outlives the
  // executor.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(ExecutorParts parts, const Sizes& sizes,
                                                          const CostModel& costs);

  const ExecutorParts& parts() const { return parts_; }
  const Sizes& sizes() const { return sizes_; }
  KvMemory& memory() { return *parts_.memory; }
  const PrefillLane& lane(size_t index) const { return *lanes_[index]; }
  size_t num_lanes() const { return lanes_.size(); }
  WorkClock& clock() { return *clock_; }
  Counters counters() const;
  // What the calling thread has waited for the device since start, in nanoseconds.
  int64_t waited_ns() const { return sampler_->waited_ns(); }

  // --- Prompts

  // Begins to read the prompts, or the parts of them that their policies name (SequenceKv::part).
  //
  // REQUIRES: the lane is free; all of the sequences have their memory.
  absl::Status BeginGroup(size_t lane, std::span<Sequence* const> members);
  // Whether the pass is the lane's next one. A group may have lost members since it was planned.
  bool CanRun(const StepPlan::Pass& pass) const;
  // Enqueues the pass. Returns whether the group is computed: then SampleFirsts() is to be called.
  // REQUIRES: CanRun(pass).
  absl::StatusOr<bool> RunPass(const StepPlan::Pass& pass);
  // Members of the lane whose policy has refused a layer since the last call.
  std::vector<PrefillLane::Failure> TakeFailures(size_t lane) {
    return lanes_[lane]->TakeFailures();
  }
  // What follows the prompt of one member.
  struct FirstTokens {
    Sequence* sequence = nullptr;
    std::vector<int32_t> targets;       // tokens to be measured there
    OutputToken drawn;                  // without targets
    std::vector<OutputToken> measured;  // of each target
  };
  // Draws or measures the tokens behind the prompts that the lane's last pass has finished, and
  // waits for the device. REQUIRES: the members are those of Live() that FinishesPrompt(), in
  // order.
  absl::Status SampleFirsts(std::span<FirstTokens> members);
  // Measures the next `rows` rows of a member's prompt, and waits for the device. The result is
  // valid until the next call. REQUIRES: rows <= max_batch and <= PromptRowsLeft().
  absl::StatusOr<std::span<const OutputToken>> MeasurePrompt(size_t lane, Sequence& sequence,
                                                             int64_t rows);
  // The part that was read last is finished by the background, and more parts follow.
  void EndPart(Sequence& sequence);
  // Lets the sequence decode if the background has finished its prompt, and returns whether it has.
  absl::StatusOr<bool> FinishPrefill(Sequence& sequence);
  // Nobody wants the sequence's result any more.
  void Drop(const Sequence& sequence);
  void LeaveLanes(const Sequence& sequence);

  // --- Decode steps

  // One decode step (DecodeStep::Run), and waits for the device.
  absl::StatusOr<std::span<const StepResult>> Step(std::span<const StepRow> rows);

  // --- Drafts of a small model. REQUIRES: there is a DraftModel. They change no sequence.

  // DraftModel::Read().
  absl::Status ReadForDrafts(const DraftedText& text, int64_t rows);
  // The draft model is given up, with its memory.
  void DropDraftModel() { parts_.draft_model.reset(); }
  // DraftModel::Draft().
  absl::StatusOr<std::vector<std::vector<int32_t>>> Draft(std::span<const DraftModel::Ask> asks);

  // --- Suspension. REQUIRES: there is a SuspendedKv.

  // Begins to copy what the sequence's dense blocks hold to the host.
  // Returns: the device's error, and the sequence is as it was.
  absl::Status CopyOut(Sequence& sequence);
  // Begins to copy the KV back. If that fails, the sequence has to end.
  // REQUIRES: KvMemory::Reserve() has given the sequence blocks again.
  absl::Status CopyBack(Sequence& sequence);
  // Whether the copies that were begun last are done. REQUIRES: sequence.copy has a value.
  absl::StatusOr<bool> IsCopied(const Sequence& sequence) const;
  // Gives the host memory of the copy back. REQUIRES: IsCopied().
  void FreeCopy(Sequence& sequence);

  // --- What the device has done. What fails here is logged, at most once a second.

  // Polls the device: which work is done, and which of the block cache's upkeep.
  void Look();
  // Does what the block cache needs between two steps. REQUIRES: Look() came before, and no step
  // since.
  void TendCache();
  // Whether nothing on the device or in the background uses the memory of a sequence that has
  // ended. Where that cannot be known, the answer is yes, and the error is logged.
  bool IsUnused(Sequence& sequence);
  void DescribeLane(size_t lane, LaneDescription& description);
  // What the rows of the lane's group are.
  // REQUIRES: description.members are those of BeginGroup(), in order.
  void DescribeRuns(size_t lane, LaneDescription& description) const;

 private:
  Executor(ExecutorParts parts, const Sizes& sizes) : parts_(std::move(parts)), sizes_(sizes) {}

  absl::Status CreateWorkspaces(const CostModel& costs);
  absl::Status AskForLacking(std::span<const StepRow> rows, std::span<const StepResult> results);
  // What the row adds to a step that has not begun.
  Work WorkOf(const StepRow& row) const;
  // Which texts are no longer cold behind the step.
  void NoteAttended(std::span<const StepRow> rows, std::span<const StepResult> results);
  void Log(common::LogRateLimiter& limiter, const char* what, const absl::Status& status);
  const Sequence* MemberOf(size_t lane, const SequenceKv& kv) const;

  ExecutorParts parts_;
  const Sizes sizes_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<DecodeStep> decode_step_;
  std::vector<std::unique_ptr<PrefillLane>> lanes_;
  std::vector<std::vector<Sequence*>> members_;  // by lane; of BeginGroup()
  std::optional<WorkClock> clock_;
  uint64_t num_steps_ = 0;
  uint64_t num_draft_steps_ = 0;
  // What fails in one round often fails in all of them, thousands a second.
  common::LogRateLimiter cache_log_{absl::Seconds(1)};
  common::LogRateLimiter device_log_{absl::Seconds(1)};
};

}  // namespace retroinfer
