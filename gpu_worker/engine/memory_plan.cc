#include "gpu_worker/engine/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/kv/segment_layout.h"
#include "gpu_worker/ops/dense_pool.h"
#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer {
namespace {

// Dense blocks of a wave sequence: its sink, and a window of at most 1024 + 64 + 64 tokens and what
// a prompt leaves beyond its last segment.
constexpr int64_t kWaveWindowBlocks =
    (kDecodeSegmentTokens + 2 * kDenseBlockTokens) / kDenseBlockTokens + 2;
constexpr uint32_t kTransientSlotsPerRow = 2048;
constexpr size_t kTableBytesPerPage = 4;   // of the arena: its slot
constexpr size_t kTableBytesPerSlot = 16;  // its page, stamp, place in the free list, in a fill's

std::string Gib(size_t bytes) {
  return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (1 << 30));
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

size_t ActivationBytes(const MemoryPlanInput& input, int64_t short_lane_tokens) {
  // Each lane: hidden states, and the keys and values of two layers.
  const size_t layer_kv = 2 * size_t{input.geometry.num_kv_heads} * input.geometry.vector_bytes();
  const size_t per_token =
      static_cast<size_t>(input.hidden_size) * input.activation_bytes_per_element + 2 * layer_kv;
  const size_t tokens =
      static_cast<size_t>(input.max_model_len - input.synthetic_tokens + short_lane_tokens);
  const size_t logits =
      static_cast<size_t>(input.max_batch) * static_cast<size_t>(input.vocab_size) * sizeof(float);
  return tokens * per_token + logits + input.synthetic_bytes;
}

}  // namespace

size_t MemoryPlan::dense_bytes() const {
  return static_cast<size_t>(dense_blocks) * DensePoolView::BlockBytes(geometry);
}
size_t MemoryPlan::meta_bytes() const {
  return static_cast<size_t>(meta_blocks) * MetaPoolView::BlockBytes(geometry);
}
size_t MemoryPlan::block_cache_bytes() const {
  const size_t slots = (size_t{num_slots} + num_transient_slots) * kPageBytes;
  return slots + size_t{arena_pages} * kTableBytesPerPage + size_t{num_slots} * kTableBytesPerSlot;
}
size_t MemoryPlan::total_bytes() const {
  return weight_bytes + activation_bytes + dense_bytes() + meta_bytes() + block_cache_bytes();
}

std::string MemoryPlan::ToString() const {
  return absl::StrCat(
      "weights ", Gib(weight_bytes), ", activations ", Gib(activation_bytes), ", dense KV ",
      Gib(dense_bytes()), " (", dense_blocks, " blocks), index ", Gib(meta_bytes()), " (",
      meta_blocks, " blocks), block cache ", Gib(block_cache_bytes()), " (", num_slots,
      " slots)\nKV capacity: ", wave_capacity_tokens, " tokens with wave attention, ",
      full_capacity_tokens, " with full attention");
}

size_t DefaultBlockCacheBytes(size_t bytes) {
  return std::max<size_t>(bytes / kPageBytes, 64) * kPageBytes;
}

int64_t ArenaCapacityTokens(const KvGeometry& geometry, uint32_t arena_pages) {
  const SegmentLayout large(geometry, kPrefillSegmentTokens);
  const SegmentLayout small(geometry, kDecodeSegmentTokens);
  const int64_t num_large = arena_pages / large.max_pages;
  const int64_t rest = arena_pages % large.max_pages;
  return num_large * kPrefillSegmentTokens + rest / small.max_pages * kDecodeSegmentTokens;
}

absl::StatusOr<MemoryPlan> PlanMemory(const MemoryPlanInput& input) {
  MemoryPlan plan{.geometry = input.geometry,
                  .weight_bytes = input.weight_bytes,
                  .max_model_len = input.max_model_len,
                  .synthetic_tokens = input.synthetic_tokens,
                  .max_batch = input.max_batch};
  plan.short_lane_tokens = std::min(input.dense_below, plan.OfRequests(input.max_model_len));
  plan.activation_bytes = ActivationBytes(input, plan.short_lane_tokens);

  const int64_t arena_tokens = ArenaCapacityTokens(input.geometry, input.arena_pages);
  plan.meta_blocks = static_cast<int32_t>(arena_tokens / kDecodeSegmentTokens);
  plan.num_slots = static_cast<uint32_t>(input.block_cache_bytes / kPageBytes);
  plan.arena_pages = input.arena_pages;
  plan.num_transient_slots = kTransientSlotsPerRow * static_cast<uint32_t>(input.max_batch);

  const size_t block_bytes = DensePoolView::BlockBytes(input.geometry);
  const size_t without_dense = plan.total_bytes();
  const int64_t short_context = std::min(input.dense_below, input.max_model_len);
  const int64_t short_blocks = 4 + CeilDiv(short_context, kDenseBlockTokens);
  const int64_t wanted =
      1 + CeilDiv(input.max_model_len, kDenseBlockTokens) + input.max_batch * kWaveWindowBlocks;
  const int64_t room =
      input.available_bytes > without_dense
          ? static_cast<int64_t>((input.available_bytes - without_dense) / block_bytes)
          : 0;
  int64_t blocks = std::min(std::max(wanted, short_blocks), room);
  if (input.dense_kv_bytes != 0) {
    blocks = static_cast<int64_t>(input.dense_kv_bytes / block_bytes);
  }
  if (blocks < short_blocks || blocks > room) {
    const size_t needed =
        without_dense + static_cast<size_t>(std::max(blocks, short_blocks)) * block_bytes;
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory: needs ", Gib(needed), " (weights ", Gib(plan.weight_bytes), ", activations ",
        Gib(plan.activation_bytes), ", index ", Gib(plan.meta_bytes()), ", block cache ",
        Gib(plan.block_cache_bytes()), ", the rest dense KV), there are ",
        Gib(input.available_bytes),
        "; use a smaller --max-model-len, --max-batch, --block-cache-bytes or arena, or a larger "
        "--dense-kv-bytes if that is what is short"));
  }
  plan.dense_blocks = static_cast<int32_t>(blocks);
  plan.full_capacity_tokens =
      std::min(input.max_model_len, (blocks - 1) * kDenseBlockTokens + kSinkTokens);
  const int64_t indexed = arena_tokens == 0 ? 0 : kSinkTokens + arena_tokens + kDenseBlockTokens;
  plan.wave_capacity_tokens =
      std::min(input.max_model_len,
               std::max(std::min(plan.full_capacity_tokens, input.dense_below), indexed));
  return plan;
}

}  // namespace retroinfer
