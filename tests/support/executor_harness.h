// An executor with a small golden model, and sequences for it, without an engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "common/log/check.h"
#include "gpu_worker/assembly/engine_assembly.h"
#include "gpu_worker/executor/executor.h"
#include "tests/support/backends.h"
#include "tests/support/data_plane_memory.h"
#include "tests/support/fake_segment_store.h"
#include "tests/support/loaded_model.h"

namespace retroinfer::test_support {

class ExecutorHarness {
 public:
  static constexpr int32_t kMaxBatch = 4;
  static constexpr int64_t kLaneTokens = 1024;
  static constexpr int64_t kMaxRows = 256;

  // A sequence, its prompt, and what was sampled last.
  struct Prompted {
    std::vector<int32_t> prompt;
    Sequence sequence;
    int32_t next_token = -1;
  };

  explicit ExecutorHarness(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {
    const MemoryPlan plan{.geometry = geometry(),
                          .dense_blocks = 64,
                          .meta_blocks = 16,
                          .num_slots = kSlots,
                          .num_transient_slots = 4096,
                          .max_model_len = 4096,
                          .max_batch = kMaxBatch,
                          .max_step_rows = kMaxBatch,
                          .max_sequences = 10,
                          .max_open_segments = 4,
                          .suspended_blocks = 16};
    auto parts = AssembleEngine({.device = backend_->device.get(),
                                 .ops = backend_->ops.get(),
                                 .compute = backend_->stream.get(),
                                 .background = backend_->background.get(),
                                 .model = model_.get(),
                                 .store = &store_,
                                 .arena = store_.arena(),
                                 .data_plane = plane_.bytes()},
                                plan, {});
    RI_CHECK(parts.ok());
    auto executor = Executor::Create(std::move(parts->executor),
                                     {.geometry = geometry(),
                                      .max_batch = kMaxBatch,
                                      .max_rows = kMaxRows,
                                      .lane_tokens = {kLaneTokens, kLaneTokens}},
                                     costs_);
    RI_CHECK(executor.ok());
    executor_ = *std::move(executor);
  }

  Executor& executor() { return *executor_; }
  FakeSegmentStore& store() { return store_; }
  Backend& backend() { return *backend_; }
  Stream& stream() { return *backend_->stream; }
  KvGeometry geometry() const { return model_->config().geometry(kBf16Kv); }
  int64_t vocab_size() const { return model_->config().vocab_size; }
  uint32_t num_layers() const { return geometry().num_layers; }

  // A sequence of policy full with its memory, whose prompt differs by id; greedy.
  std::unique_ptr<Prompted> Make(uint64_t id, int64_t prompt_tokens, int64_t max_tokens,
                                 int32_t num_prompt_logprobs = -1) {
    auto made = std::make_unique<Prompted>();
    for (int64_t i = 0; i < prompt_tokens; ++i) {
      made->prompt.push_back(
          static_cast<int32_t>((i * 31 + static_cast<int64_t>(id) * 7) % vocab_size()));
    }
    Sequence& sequence = made->sequence;
    sequence.policy = &executor_->parts().policies.Of(PolicyKind::kFull);
    sequence.num_prompt_logprobs = num_prompt_logprobs;
    SequenceKv& kv = sequence.kv;
    kv.sequence_id = id;
    kv.settings.policy = PolicyKind::kFull;
    kv.prompt = made->prompt;
    kv.prompt_tokens = prompt_tokens;
    kv.total_tokens = prompt_tokens + max_tokens;
    kv.reads_whole = sequence.measures_prompt();
    RI_CHECK(executor_->memory().Reserve(
        sequence.policy->Need(kv.settings, prompt_tokens, kv.total_tokens), kv));
    kv.part = sequence.policy->NextPart(kv, kLaneTokens);
    auto state = SamplingState::Create(*backend_->device, stream(), {.temperature = 0},
                                       made->prompt, {}, vocab_size());
    RI_CHECK(state.ok());
    sequence.sampling = *std::move(state);
    return made;
  }

  // Runs all passes of the lane's group.
  void Compute(size_t lane) {
    const PrefillLane& at = executor_->lane(lane);
    bool is_computed = false;
    while (!is_computed) {
      const StepPlan::Pass pass{.lane = lane,
                                .layer = at.layer(),
                                .first_row = at.next_row(),
                                .num_rows = std::min(kMaxRows, at.num_rows() - at.next_row())};
      RI_CHECK(executor_->CanRun(pass));
      const auto computed = executor_->RunPass(pass);
      RI_CHECK(computed.ok());
      is_computed = *computed;
    }
  }

  // Reads the prompts together and lets them decode: all that comes before the first step.
  void Read(const std::vector<Prompted*>& members, size_t lane = 0) {
    std::vector<Sequence*> sequences;
    std::vector<Executor::FirstTokens> firsts;
    for (Prompted* member : members) {
      sequences.push_back(&member->sequence);
      firsts.push_back({.sequence = &member->sequence});
    }
    RI_CHECK(executor_->BeginGroup(lane, sequences).ok());
    Compute(lane);
    RI_CHECK(executor_->SampleFirsts(firsts).ok());
    for (size_t i = 0; i < members.size(); ++i) {
      members[i]->next_token = firsts[i].drawn.token;
      const auto finished = executor_->FinishPrefill(members[i]->sequence);
      RI_CHECK(finished.ok() && *finished);
    }
  }

  // Decodes one token of each; rows in this order.
  void Step(const std::vector<Prompted*>& batch) {
    std::vector<StepRow> rows;
    for (Prompted* one : batch) {
      rows.push_back({.sequence = &one->sequence.kv,
                      .policy = one->sequence.policy,
                      .sampling = &*one->sequence.sampling,
                      .token = one->next_token,
                      .position = one->sequence.kv.num_tokens});
    }
    const auto results = executor_->Step(rows);
    RI_CHECK(results.ok());
    for (size_t i = 0; i < batch.size(); ++i) batch[i]->next_token = (*results)[i].token->token;
  }
  std::vector<int32_t> Decode(Prompted& one, int steps) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < steps; ++i) {
      Step({&one});
      tokens.push_back(one.next_token);
    }
    return tokens;
  }
  void WaitForCopies(const Sequence& sequence) {
    while (!executor_->IsCopied(sequence).value()) std::this_thread::yield();
  }

 private:
  static constexpr uint32_t kSlots = 256, kArenaPages = 4096;

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Transformer> model_ =
      LoadGoldenModel(*backend_, "llama-d64-untied-bf16", kMaxRows, kMaxBatch);
  FakeSegmentStore store_{geometry(), kArenaPages};
  DataPlaneMemory plane_{kSlots, 2048, 64, kArenaPages};
  const CostModel costs_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace retroinfer::test_support
