#include "gpu_worker/engine/memory_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/kv/segment_layout.h"
#include "common/shm/data_plane.h"
#include "gpu_worker/attention/policy_table.h"
#include "gpu_worker/ops/attention/decode_attention.h"
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
constexpr size_t kSlotBytes = kPageBytes + kTableBytesPerSlot;
constexpr uint64_t kSlotsMin = 64;
// More than the longest log can follow would stay empty (BlockCache::Create()).
constexpr uint64_t kSlotsMax = DataPlane::kLogCapacityMax / 4 * 3;
// What WaveDecode selects with: of a cluster and query head, its score and its rank; of a cluster
// and KV head, its places in the two zones and in the selection's scratch.
constexpr size_t kSelectBytesPerQueryHead = 2 * sizeof(float);
constexpr size_t kSelectBytesPerKvHead = 2 * sizeof(int32_t) + 8;

std::string Gib(size_t bytes) {
  return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (1 << 30));
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of the execution buffer and what it is made from, for contexts of max_model_len in every row.
size_t SelectionBytes(const MemoryPlanInput& input) {
  const KvGeometry& geometry = input.geometry;
  const int64_t clusters = input.max_batch * (input.max_model_len / kTokensPerCluster);
  const int64_t per_page = geometry.tokens_per_page();
  const int64_t pages = clusters * (int64_t{kTokensPerCluster} + per_page - 1) / per_page;
  const size_t per_cluster = static_cast<size_t>(input.num_query_heads) * kSelectBytesPerQueryHead +
                             geometry.num_kv_heads * kSelectBytesPerKvHead;
  return static_cast<size_t>(clusters) * per_cluster +
         geometry.num_kv_heads * static_cast<size_t>(pages) * sizeof(PageRef);
}

size_t ActivationBytes(const MemoryPlanInput& input, int64_t lane_tokens) {
  // Each lane: hidden states, ids and positions, and the keys and values of two layers.
  const size_t layer_kv =
      2 * size_t{input.geometry.num_kv_heads} * input.geometry.prompt_vector_bytes();
  const size_t per_token =
      static_cast<size_t>(input.hidden_size) * input.activation_bytes_per_element + 2 * layer_kv +
      2 * sizeof(int32_t);
  const size_t tokens = static_cast<size_t>(lane_tokens);
  const size_t logits = static_cast<size_t>(input.max_batch) *
                        static_cast<size_t>(input.vocab_size) * 2 * sizeof(float);  // and adjusted
  return tokens * per_token + SelectionBytes(input) + logits + input.synthetic_bytes;
}

// How many dense blocks are of use.
struct DenseDemand {
  int64_t least;   // for one short context
  int64_t wanted;  // for one long one, and windows
  int64_t most;
};

DenseDemand DenseDemandOf(const MemoryPlanInput& input) {
  const int64_t short_context = std::min(input.dense_below, input.max_model_len);
  const int64_t least = 4 + CeilDiv(short_context, kDenseBlockTokens);
  const int64_t context = 1 + CeilDiv(input.max_model_len, kDenseBlockTokens);
  const int64_t wanted = std::max(context + input.max_batch * kWaveWindowBlocks, least);
  return {.least = least,
          .wanted = wanted,
          .most = std::max<int64_t>(wanted, input.max_batch * context)};
}

// Dense blocks of requests that step aside, all together. On a CPU they are in the same memory as
// all else, of which they get what is left.
int32_t SuspendedBlocks(const MemoryPlanInput& input, const MemoryPlan& plan) {
  if (!input.preemption) return 0;
  const size_t block_bytes = DensePoolView::BlockBytes(input.geometry);
  const int64_t short_context = std::min(input.dense_below, input.max_model_len);
  const int64_t wanted = std::max<int64_t>(input.max_batch * kWaveWindowBlocks,
                                           1 + CeilDiv(short_context, kDenseBlockTokens));
  size_t blocks = static_cast<size_t>(std::min<int64_t>(wanted, plan.dense_blocks));
  if (input.suspended_kv_bytes != 0) blocks = input.suspended_kv_bytes / block_bytes;
  if (!input.owns_memory) blocks = std::min(blocks, plan.unused_bytes / block_bytes);
  return static_cast<int32_t>(std::min<size_t>(blocks, std::numeric_limits<int32_t>::max()));
}

// How many slots are of use.
uint64_t MostSlots(const MemoryPlanInput& input) {
  return std::clamp<uint64_t>(input.arena_pages, kSlotsMin, kSlotsMax);
}

// Slots get one part in so many of what weights leave where dense KV wants all the rest.
size_t PartsOf(const MemoryPlanInput& input) { return input.owns_memory ? 2 : 16; }

// What slots get then, of `bytes` that weights leave.
uint64_t SlotsDue(const MemoryPlanInput& input, size_t bytes) {
  return std::clamp(uint64_t{bytes / PartsOf(input) / kSlotBytes}, kSlotsMin, MostSlots(input));
}

// The least bytes for slots and dense KV under which Split() has room for both, where weights and
// `others` are beside them.
size_t LeastBytes(const MemoryPlanInput& input, const DenseDemand& demand, size_t others) {
  const size_t block_bytes = DensePoolView::BlockBytes(input.geometry);
  const size_t dense =
      std::max(input.dense_kv_bytes / block_bytes, static_cast<size_t>(demand.least)) * block_bytes;
  uint64_t slots = SlotsDue(input, (others + dense) / (PartsOf(input) - 1) * PartsOf(input));
  if (input.dense_kv_bytes != 0) slots = kSlotsMin;
  if (input.block_cache_bytes != 0) slots = input.block_cache_bytes / kPageBytes;
  return dense + slots * kSlotBytes;
}

// Gives slots and dense blocks their parts of `bytes`.
//
// REQUIRES: bytes >= LeastBytes().
void Split(const MemoryPlanInput& input, const DenseDemand& demand, size_t bytes,
           MemoryPlan& plan) {
  const size_t block_bytes = DensePoolView::BlockBytes(input.geometry);
  const auto blocks_beside = [&](uint64_t slots) {
    const size_t taken = std::min(bytes, slots * kSlotBytes);
    return static_cast<int64_t>((bytes - taken) / block_bytes);
  };
  const bool are_slots_given = input.block_cache_bytes != 0;
  const bool are_blocks_given = input.dense_kv_bytes != 0;
  const uint64_t due = are_slots_given
                           ? input.block_cache_bytes / kPageBytes
                           : SlotsDue(input, input.available_bytes - input.weight_bytes);
  int64_t blocks = std::max(demand.least, std::min(demand.wanted, blocks_beside(due)));
  if (are_blocks_given) blocks = static_cast<int64_t>(input.dense_kv_bytes / block_bytes);
  uint64_t slots = due;
  if (!are_slots_given) {
    const size_t rest = bytes - static_cast<size_t>(blocks) * block_bytes;
    slots = std::min(uint64_t{rest / kSlotBytes}, input.owns_memory ? MostSlots(input) : due);
  }
  if (input.owns_memory && !are_blocks_given) blocks = std::min(demand.most, blocks_beside(slots));
  plan.num_slots = static_cast<uint32_t>(slots);
  plan.dense_blocks = static_cast<int32_t>(blocks);
}

absl::Status TooLittle(const MemoryPlanInput& input, const MemoryPlan& fixed, size_t least) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "memory: needs ", Gib(fixed.total_bytes() + least), " (weights ", Gib(fixed.weight_bytes),
      ", activations ", Gib(fixed.activation_bytes), ", index ", Gib(fixed.meta_bytes()),
      ", tables of the arena ", Gib(fixed.block_cache_bytes()), ", the rest slots and dense KV), ",
      "there are ", Gib(input.available_bytes),
      "; use a smaller --max-model-len, --max-batch, --block-cache-bytes or arena, or a larger "
      "--dense-kv-bytes if that is what is short"));
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

size_t MemoryPlan::suspended_bytes() const {
  return static_cast<size_t>(suspended_blocks) * DensePoolView::BlockBytes(geometry);
}

std::string MemoryPlan::ToString() const {
  std::string text = absl::StrCat("weights ", Gib(weight_bytes), ", activations ",
                                  Gib(activation_bytes), ", dense KV ", Gib(dense_bytes()), " (",
                                  dense_blocks, " blocks), index ", Gib(meta_bytes()), " (",
                                  meta_blocks, " blocks), block cache ", Gib(block_cache_bytes()),
                                  " (", num_slots, " slots), not used ", Gib(unused_bytes));
  if (suspended_blocks > 0) {
    absl::StrAppend(&text, "; host memory for requests that step aside ", Gib(suspended_bytes()));
  }
  absl::StrAppend(&text, "\nKV capacity: ");
  for (size_t i = kNumPolicies; i-- > 0;) {
    const auto kind = static_cast<PolicyKind>(i);
    const bool is_first = i + 1 == kNumPolicies;
    absl::StrAppend(&text, is_first ? "" : ", ", capacity_tokens[kind],
                    is_first ? " tokens with " : " with ", std::string(PolicyName(kind)),
                    " attention");
  }
  return text;
}

size_t PlannableGpuBytes(size_t bytes) { return bytes - std::min(bytes / 4, size_t{1} << 30); }

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
  plan.long_lane_tokens = plan.OfRequests(input.max_model_len);
  if (input.max_whole_prompt != 0) {
    plan.long_lane_tokens = std::min(plan.long_lane_tokens, input.max_whole_prompt);
  }
  plan.short_lane_tokens = std::min(input.dense_below, plan.long_lane_tokens);
  plan.activation_bytes = ActivationBytes(input, plan.long_lane_tokens + plan.short_lane_tokens);

  const int64_t arena_tokens = ArenaCapacityTokens(input.geometry, input.arena_pages);
  plan.meta_blocks = static_cast<int32_t>(arena_tokens / kDecodeSegmentTokens);
  plan.arena_pages = input.arena_pages;
  if (input.uses_transient_slots) {
    plan.num_transient_slots = kTransientSlotsPerRow * static_cast<uint32_t>(input.max_batch);
  }

  const DenseDemand demand = DenseDemandOf(input);
  const size_t fixed = plan.total_bytes();
  const size_t given = std::max(input.dense_kv_bytes, input.block_cache_bytes);
  if (given > input.available_bytes) return TooLittle(input, plan, given);
  const size_t least = LeastBytes(input, demand, fixed - plan.weight_bytes);
  const size_t least_dense =
      static_cast<size_t>(demand.least) * DensePoolView::BlockBytes(input.geometry);
  if (input.available_bytes < fixed || input.available_bytes - fixed < least ||
      (input.dense_kv_bytes != 0 && input.dense_kv_bytes < least_dense)) {
    return TooLittle(input, plan, least);
  }
  Split(input, demand, input.available_bytes - fixed, plan);
  plan.unused_bytes = input.available_bytes - plan.total_bytes();
  plan.suspended_blocks = SuspendedBlocks(input, plan);
  if (!input.owns_memory) plan.unused_bytes -= plan.suspended_bytes();
  plan.capacity_tokens =
      CapacitiesOf({.max_model_len = input.max_model_len,
                    .max_whole_len = plan.synthetic_tokens + plan.long_lane_tokens,
                    .dense_blocks = plan.dense_blocks,
                    .arena_tokens = arena_tokens,
                    .dense_below = input.dense_below});
  return plan;
}

}  // namespace retroinfer
