#include "gpu_worker/attention/full_policy.h"

#include <algorithm>

#include "absl/memory/memory.h"
#include "common/status/status_macros.h"

namespace retroinfer {

absl::StatusOr<std::unique_ptr<FullPolicy>> FullPolicy::Create(
    Device& device, AttentionOps& ops, Stream& stream, const DensePoolView& pool,
    BlockTables& tables, const Stretches& stretches, int32_t num_query_heads, int32_t max_batch) {
  ASSIGN_OR_RETURN(DenseZoneBatch dense,
                   DenseZoneBatch::CreateToAttend(device, ops, stream, pool, tables, max_batch,
                                                  num_query_heads));
  auto policy = absl::WrapUnique(new FullPolicy(std::move(dense), stretches));
  policy->batch_.reserve(static_cast<size_t>(max_batch));
  return policy;
}

KvNeed FullPolicy::Need(const AttentionSettings& /*settings*/, int64_t /*prompt_tokens*/,
                        int64_t total_tokens) const {
  const int64_t window = std::max<int64_t>(0, total_tokens - kSinkTokens);
  return {.dense_blocks =
              static_cast<int32_t>(1 + (window + kDenseBlockTokens - 1) / kDenseBlockTokens),
          .meta_blocks = 0,
          .segment_tokens = {}};
}

KvBlocks FullPolicy::NeedWhile(const AttentionSettings& settings, const KvGrowth& growth) const {
  return {.dense = Need(settings, growth.prompt_tokens, growth.to).dense_blocks};
}

PromptPart FullPolicy::NextPart(const SequenceKv& sequence, int64_t /*max_tokens*/) const {
  PromptPart part{.begin = sequence.num_tokens, .attends_to_all = true};
  part.num_context = part.begin;
  part.end = sequence.prompt_tokens;
  if (sequence.reads_whole) return part;
  const int64_t begin = std::max(part.begin, sequence.read_end());
  const int64_t most = stretches_.FurthestEnd(begin, sequence.prompt_tokens);
  // At the end of a block, which can be saved then.
  const int64_t blocks = (most - kSinkTokens) / kDenseBlockTokens;
  if (most < part.end) part.end = kSinkTokens + blocks * kDenseBlockTokens;
  return part;
}

absl::Status FullPolicy::PrepareLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) {
  if (sequence.part.num_context == 0) return absl::OkStatus();
  return dense_.ReadContext(sequence, layer, kv);
}

absl::Status FullPolicy::TakeLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) {
  if (layer == 0) RETURN_IF_ERROR(dense_.WriteTable(sequence));
  return dense_.FillFromPrompt(sequence, layer, kv);
}

void FullPolicy::EndLayers(SequenceKv& sequence) {
  if (sequence.part.end == sequence.prompt_tokens) return;
  sequence.num_tokens = sequence.part.end;
  sequence.cached.clear();  // it is in blocks of the sequence's own now
}

absl::StatusOr<bool> FullPolicy::LayerTaken(const SequenceKv& /*sequence*/, uint32_t /*layer*/) {
  return true;  // The copy is on the compute stream: later work comes after it.
}

absl::StatusOr<bool> FullPolicy::FinishPrefill(SequenceKv& sequence) {
  sequence.num_tokens = sequence.prompt_tokens;
  return true;
}

absl::Status FullPolicy::BeginStep(std::span<SequenceKv* const> batch) {
  batch_.assign(batch.begin(), batch.end());
  return dense_.BeginStep(batch);
}

absl::Status FullPolicy::EndStep() {
  for (SequenceKv* sequence : batch_) ++sequence->num_tokens;
  return absl::OkStatus();
}

absl::StatusOr<bool> FullPolicy::Release(SequenceKv& /*sequence*/) { return true; }

AttentionPolicy::BytesRead FullPolicy::LastStepBytes(size_t row) const {
  const double bytes = static_cast<double>(batch_[row]->num_tokens) *
                       static_cast<double>(dense_.pool().geometry.token_bytes());
  return {.read = bytes, .full = bytes};
}

}  // namespace retroinfer
