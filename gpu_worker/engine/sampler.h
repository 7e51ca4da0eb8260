// Draws the next token of each sequence of a batch: keeps the device arrays that ops/sampling.h
// reads.
//
// Threads: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/engine/generation.h"
#include "gpu_worker/ops/ops.h"

namespace retroinfer {

// The sampling state of one sequence. Penalties need a count for every token of the vocabulary,
// which is allocated once, and only for a request that sets one.
class SamplingState {
 public:
  // `eos_token_ids` are banned, as are the request's stop tokens, before min_tokens.
  static absl::StatusOr<SamplingState> Create(Device& device, Stream& stream,
                                              const GenerationRequest& request,
                                              std::span<const int32_t> eos_token_ids,
                                              int64_t vocab_size);

  // Counts a generated token.
  absl::Status Count(Device& device, Stream& stream, int32_t token);

 private:
  friend class Sampler;
  SamplingRow row_;
  int32_t min_tokens_ = 0;
  int32_t num_generated_ = 0;
  int64_t prompt_tokens_ = 0;
  std::vector<int32_t> banned_;        // at most kMaxBanned
  std::vector<uint32_t> occurrences_;  // host image, [vocab] or empty
  DeviceBuffer device_occurrences_;
};

class Sampler {
 public:
  static absl::StatusOr<std::unique_ptr<Sampler>> Create(Device& device, Ops& ops, Stream& stream,
                                                         int32_t max_batch, int64_t vocab_size);

  // Logits of up to max_batch sequences, [max_batch, vocab] f32; filled by the model before Sample.
  MatrixView logits(int32_t batch) const;

  // Samples one token for each state. Waits for the device: this is the step's one synchronisation.
  // The result stays valid until the next call. Alternatives are filled as far as the request asks.
  absl::StatusOr<std::span<const OutputToken>> Sample(std::span<SamplingState* const> states);

 private:
  Sampler(Device& device, Ops& ops, Stream& stream, int32_t max_batch, int64_t vocab_size);

  Device& device_;
  Ops& ops_;
  Stream& stream_;
  const int32_t max_batch_;
  const int64_t vocab_size_;
  DeviceBuffer logits_, rows_, banned_, occurrence_pointers_;
  DeviceBuffer tokens_, logprobs_, top_tokens_, top_logprobs_, scratch_;
  // Host images, [max_batch] or [max_batch, n].
  std::vector<SamplingRow> host_rows_;
  std::vector<int32_t> host_banned_;
  std::vector<const uint32_t*> host_pointers_;
  std::vector<int32_t> host_tokens_, host_top_tokens_;
  std::vector<float> host_logprobs_, host_top_logprobs_;
  std::vector<OutputToken> output_;
};

}  // namespace retroinfer
