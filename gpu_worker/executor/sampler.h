// Draws the next token of each sequence of a batch: keeps the device arrays that
// ops/model/sampling.h reads, and follows the constraints of sequences.
//
// Threads: the engine's thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/device/staged_arrays.h"
#include "gpu_worker/executor/output_token.h"
#include "gpu_worker/executor/sampling_params.h"
#include "gpu_worker/ops/model/model_ops.h"
#include "text/constraint/matcher.h"

namespace retroinfer {

// The sampling state of one sequence. Penalties need a count for every token of the vocabulary,
// which is allocated once, and only for a request that sets one; so do biases and bans.
class SamplingState {
 public:
  // `eos_token_ids` are banned, as are the stop tokens of `sampling`, before min_tokens.
  //
  // Returns: RESOURCE_EXHAUSTED if the device has no memory for it.
  static absl::StatusOr<SamplingState> Create(Device& device, Stream& stream,
                                              const SamplingParams& sampling,
                                              std::span<const int32_t> prompt,
                                              std::span<const int32_t> eos_token_ids,
                                              int64_t vocab_size);

  // Counts a generated token. The device learns of it when the sequence is sampled again.
  //
  // Returns: INTERNAL for a token that the constraint does not allow: the model has given nothing
  //          that could be drawn; or why there was no mask (constraint::Matcher::status).
  absl::Status Count(int32_t token);
  // Whether the constraint is met and nothing can follow.
  bool MustEnd() const { return matcher_.has_value() && matcher_->MustEnd(); }

 private:
  friend class Sampler;
  void SetBiases(const SamplingParams& sampling, std::span<const int32_t> eos_token_ids);
  // Biases of the token behind so many generated ones: with the bans, or those behind them.
  size_t first_bias(int64_t generated) const {
    return generated < min_tokens_ ? 0 : num_biases_with_bans_;
  }
  size_t end_bias(int64_t generated) const {
    return generated < min_tokens_ ? num_biases_with_bans_ : biases_.size();
  }

  SamplingRow row_;
  int32_t min_tokens_ = 0;
  int32_t num_generated_ = 0;
  int64_t prompt_tokens_ = 0;
  // Host image. First the biases and bans that hold before min_tokens, no token twice; then the
  // biases that hold afterwards.
  std::vector<SamplingBias> biases_;
  size_t num_biases_with_bans_ = 0;
  DeviceBuffer device_biases_;
  std::vector<uint32_t> occurrences_;  // host image, [vocab] or empty
  std::vector<int32_t> uncounted_;     // tokens whose count the device does not know
  DeviceBuffer device_occurrences_;
  std::optional<constraint::Matcher> matcher_;  // of a sequence with a constraint
};

class Sampler {
 public:
  static absl::StatusOr<std::unique_ptr<Sampler>> Create(Device& device, ModelOps& ops,
                                                         Stream& stream, int32_t max_batch,
                                                         int64_t vocab_size);
  // What Create allocates. A request that has biases or penalties takes memory of its own beside
  // that (SamplingState).
  static MemoryNeed MemoryOf(int32_t max_batch, int64_t vocab_size);

  // Logits of up to max_batch sequences, [max_batch, vocab] f32; filled by the model before Sample.
  MatrixView logits(int32_t batch) const;

  // Samples one token for each state: the five calls below in order. The result stays valid until
  // the next call. Alternatives are filled as far as the request asks.
  absl::StatusOr<std::span<const OutputToken>> Sample(std::span<SamplingState* const> states,
                                                      std::span<const int32_t> forced = {},
                                                      std::span<const int32_t> fed = {});
  // Measures one token for each row of logits, without any state.
  // REQUIRES: tokens.size() <= max_batch, each in the vocabulary.
  absl::StatusOr<std::span<const OutputToken>> Measure(std::span<const int32_t> tokens,
                                                       int32_t num_top_logprobs);

  // Describes the rows in host memory. `forced` has a token for each row, or none at all: one that
  // is not negative is measured instead of drawing any. `fed` has the token that each row's logits
  // are behind, or none at all. A state may be there more than once, in neighbouring rows; if these
  // draw, each draws as if the tokens fed to the rows of it behind the first that draws had been
  // counted.
  // REQUIRES: states.size() <= max_batch; at most kMaxSamplingAhead + 1 rows of a state draw;
  //           Wait() has returned since the last Prepare().
  absl::Status Prepare(std::span<SamplingState* const> states, std::span<const int32_t> forced = {},
                       std::span<const int32_t> fed = {});
  // Computes the masks of the rows that have a constraint, in host memory. May come while the
  // device computes the logits.
  void FillMasks();
  // Copies description and masks to the device, samples, and copies the results back. What it
  // enqueues depends on Shape() alone, so it can be recorded.
  absl::Status Enqueue();
  std::span<const uint64_t> Shape() const { return shape_; }
  // Waits for the results: a decode step's one synchronisation.
  absl::Status Wait();
  std::span<const OutputToken> Results();
  // Whether the row was drawn as it would have been in a step of its own. If not, the constraint
  // had no mask for a row that is not the state's first: what was drawn there means nothing.
  bool IsDrawn(size_t row) const;
  // Nanoseconds spent in Wait() since start.
  int64_t waited_ns() const { return waited_ns_; }

 private:
  Sampler(Device& device, ModelOps& ops, Stream& stream, int32_t max_batch, int64_t vocab_size);
  absl::Status UploadCounts(SamplingState& state);
  // Describes a row that is drawn behind the tokens `ahead`.
  void DescribeRow(size_t row, const SamplingState& state, std::span<const int32_t> ahead);
  // Gives the row the place in a constraint whose mask it needs.
  void FollowConstraint(size_t row, SamplingState& state, std::span<const int32_t> ahead);
  void SetShape();
  absl::StatusOr<std::span<const OutputToken>> Run();

  Device& device_;
  ModelOps& ops_;
  Stream& stream_;
  const int32_t max_batch_;
  const int64_t vocab_size_;
  DeviceBuffer logits_, scratch_;
  enum Input : size_t { kRows, kBiases, kOccurrences, kMasks };
  enum Result : size_t { kTokens, kLogprobs, kRanks, kTopTokens, kTopLogprobs };
  StagedArrays inputs_;   // [max_batch]
  StagedArrays results_;  // [max_batch] or [max_batch, n]
  StagedArrays masks_;    // [max_batch] masks; those of rows without a constraint are left out
  std::unique_ptr<Event> sampled_;
  // Counts on their way to the device.
  HostBuffer counts_;
  size_t num_counts_ = 0;
  size_t batch_ = 0;
  bool wants_alternatives_ = false;
  // Of the batch: mask i is that of matcher i, for row mask_rows_[i].
  std::vector<constraint::Matcher*> matchers_;
  std::vector<size_t> mask_rows_;
  std::vector<constraint::Matcher> matchers_ahead_;  // of rows that are not their state's first
  std::array<uint64_t, 3> shape_{};                  // batch, alternatives, masks
  int64_t waited_ns_ = 0;
  std::vector<OutputToken> output_;
};

}  // namespace retroinfer
