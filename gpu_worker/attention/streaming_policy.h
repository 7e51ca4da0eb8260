// Policy `streaming`: each token attends to the sink and to a window of the newest tokens, whatever
// the length of the text (StreamingLLM, arXiv 2309.17453). What left the window is forgotten, so
// the KV of a sequence, prompt and output, takes constant memory.
//
// The window is made of whole dense blocks: the one of the token itself, and as many before it as
// hold `streaming_window` tokens. So a token sees the newest N to N + 63 tokens, by its position
// alone. Prompts are read with the same mask, in parts: a part's rows go through all layers before
// the next one's, and of each layer only sink and window are kept in between. RoPE has the tokens'
// true positions; StreamingLLM counts within the cache instead, so that positions stay in the range
// of the training, which matters beyond the model's context only, and those are refused.
//
// Threads: the engine's thread; Need() on any.
// Owns:    the step's device arrays.
#pragma once

#include <memory>
#include <vector>

#include "gpu_worker/attention/attention_policy.h"
#include "gpu_worker/attention/dense_zone_batch.h"
#include "gpu_worker/kv/kv_memory.h"
#include "gpu_worker/ops/attention/attention_ops.h"

namespace retroinfer {

// Position of the first token, behind the sink, that the token at `position` attends to.
int64_t StreamingWindowBegin(int64_t position, int32_t window_tokens);

class StreamingPolicy final : public AttentionPolicy {
 public:
  // Tokens that go through the layers at a time.
  static constexpr int64_t kPartTokens = 4096;

  // All of it outlives the policy.
  static absl::StatusOr<std::unique_ptr<StreamingPolicy>> Create(Device& device, AttentionOps& ops,
                                                                 Stream& stream, KvMemory& memory,
                                                                 int32_t num_query_heads,
                                                                 int32_t max_batch);

  KvNeed Need(const AttentionSettings& settings, int64_t prompt_tokens,
              int64_t total_tokens) const override;
  KvBlocks NeedWhile(const AttentionSettings& settings, const KvGrowth& growth) const override;
  PromptPart NextPart(const SequenceKv& sequence, int64_t max_tokens) const override;
  absl::Status PrepareLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) override;
  AttentionWindow WindowOf(const SequenceKv& sequence) const override;
  absl::Status TakeLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) override;
  absl::StatusOr<bool> LayerTaken(const SequenceKv& sequence, uint32_t layer) override;
  bool TakesInOrder(const SequenceKv& /*sequence*/) const override { return true; }
  absl::StatusOr<bool> FinishPrefill(SequenceKv& sequence) override;
  int64_t RowsTogether(const SequenceKv& sequence) const override;
  absl::Status BeginStep(std::span<SequenceKv* const> batch) override;
  uint64_t StepShape() const override { return 0; }
  absl::Status UploadStep() override { return dense_.UploadStep(); }
  absl::Status DecodeLayer(uint32_t layer, const AttentionForm& form, const MatrixView& queries,
                           const MatrixView& keys, const MatrixView& values,
                           const MatrixView& out) override {
    return dense_.DecodeLayer(layer, form, queries, keys, values, out);
  }
  absl::Status DownloadStep() override { return absl::OkStatus(); }
  absl::Status EndStep() override;
  absl::StatusOr<bool> Release(SequenceKv& sequence) override;
  BytesRead LastStepBytes(size_t row) const override;

 private:
  StreamingPolicy(AttentionOps& ops, Stream& stream, KvMemory& memory, DenseZoneBatch dense)
      : ops_(ops), stream_(stream), memory_(memory), dense_(std::move(dense)) {}

  // Blocks [first, first + count) of the sequence, as the device has them.
  DeviceSpan<const DenseBlockId> Blocks(const SequenceKv& sequence, size_t first,
                                        int64_t num_tokens) const;

  AttentionOps& ops_;
  Stream& stream_;
  KvMemory& memory_;
  DenseZoneBatch dense_;
  std::vector<SequenceKv*> batch_;
};

}  // namespace retroinfer
