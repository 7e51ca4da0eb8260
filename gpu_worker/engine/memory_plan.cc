#include "gpu_worker/engine/memory_plan.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/kv/segment_layout.h"
#include "common/shm/data_plane.h"
#include "common/status/status_macros.h"
#include "gpu_worker/attention/policy_table.h"
#include "gpu_worker/executor/decode_step.h"
#include "gpu_worker/executor/prefill_lane.h"
#include "gpu_worker/executor/sampler.h"
#include "gpu_worker/kv/suspended_kv.h"
#include "gpu_worker/kv/window_layers.h"
#include "gpu_worker/model/transformer.h"
#include "gpu_worker/ops/dense_pool.h"
#include "gpu_worker/wave_index/segment_builder.h"

namespace retroinfer {
namespace {

// Dense blocks of a wave sequence: its sink, and a window of at most 1024 + 64 + 64 tokens and what
// a prompt leaves beyond its last segment.
constexpr int64_t kWaveWindowBlocks =
    (kDecodeSegmentTokens + 2 * kDenseBlockTokens) / kDenseBlockTokens + 2;
constexpr uint32_t kTransientSlotsPerRow = 2048;
constexpr uint64_t kSlotsMin = 64;
// More than the longest log can follow would stay empty (BlockCache::Create()).
constexpr uint64_t kSlotsMax = DataPlane::kLogCapacityMax / 4 * 3;
// Page-locked memory is nobody else's: for windows of suspended requests no more than this,
// unless more is asked for.
constexpr size_t kSuspendedBytes = size_t{2} << 30;

constexpr std::string_view kDraftModel = "draft model";

// Rows that share what they retrieve, where nobody says: as many as there can be, while what a row
// takes of memory for its lists, which grows with the context, is little. A CPU takes much longer
// for a step of many rows, which others wait for.
int32_t TailRun(const MemoryPlanInput& input) {
  if (input.tail_run != 0) return input.tail_run;
  if (input.kv_format.token_code_bits != 0 || input.geometry().has_window_layers()) return 1;
  constexpr int64_t kTokensOfRows = int64_t{1} << 23;
  constexpr int64_t kMostOfCpu = 8;
  const int64_t most = input.backend.uses_transient_slots ? kMostOfCpu : kMaxTailRun;
  const int64_t rows = kTokensOfRows / std::max<int64_t>(1, input.max_model_len);
  return static_cast<int32_t>(
      std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(rows, 1, most))));
}

std::string Gib(size_t bytes) {
  return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (1 << 30));
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// All but the weights, for a worker of the plan's sizes.
std::vector<ComponentMemory> ComponentsOf(const MemoryPlanInput& input, const MemoryPlan& plan) {
  const ModelConfig& model = input.model;
  const BackendNeeds& backend = input.backend;
  const auto lane = [&](int64_t tokens) {
    return PrefillLane::MemoryOf(model, backend.activation_dtype, plan.geometry, tokens,
                                 plan.max_step_rows);
  };
  std::vector<ComponentMemory> components = {
      {"model", Transformer::MemoryOf(model, backend,
                                      {.max_prefill_rows = plan.prefill_rows,
                                       .max_decode_rows = plan.max_step_rows,
                                       .max_positions = plan.max_model_len,
                                       .progress = {}})},
      {"long lane", lane(plan.long_lane_tokens)},
      {"short lane", lane(plan.short_lane_tokens)},
      {"sampler", Sampler::MemoryOf(plan.max_step_rows, model.vocab_size)},
      {"decode step", DecodeStep::MemoryOf(plan.max_step_rows)},
      {"sequences", KvMemory::MemoryOf({.geometry = plan.geometry,
                                        .dense_blocks = plan.dense_blocks,
                                        .meta_blocks = plan.meta_blocks,
                                        .max_sequences = plan.max_sequences,
                                        .max_model_len = plan.max_model_len})},
      {"block cache", BlockCache::MemoryOf({.num_slots = plan.num_slots,
                                            .num_transient = plan.num_transient_slots,
                                            .page_bytes = plan.geometry.page_bytes()},
                                           plan.arena_pages)},
      {"segments", SegmentBuilder::MemoryOf(
                       plan.geometry, {.max_open_segments = plan.max_open_segments}, backend)},
      {"synthetic contexts", {MemoryPurpose::kActivations, input.synthetic_bytes}}};
  if (plan.geometry.has_window_layers()) {
    components.push_back(
        {"window layers",
         WindowLayers::MemoryOf({.geometry = plan.geometry,
                                 .num_rows = plan.max_sequences,
                                 .max_batch = plan.max_step_rows,
                                 .num_query_heads = static_cast<int32_t>(model.num_query_heads)},
                                backend)});
  }
  const PolicyLimits limits = {.geometry = plan.geometry,
                               .num_query_heads = static_cast<int32_t>(model.num_query_heads),
                               .max_batch = plan.max_step_rows,
                               .max_tokens = plan.max_model_len,
                               .radius_weight = input.index.radius_weight,
                               .backend = backend};
  for (const PolicyEntry& entry : PolicyTable()) {
    components.push_back({PolicyName(entry.kind), entry.memory(limits)});
  }
  if (plan.draft.has_value()) {
    components.push_back(
        {kDraftModel, DraftModel::MemoryOf(input.draft->model, backend, *plan.draft) +
                          MemoryNeed(MemoryPurpose::kWeights, input.draft->weight_bytes)});
  }
  return components;
}

// Counts what a worker of the plan's sizes takes.
void AddUp(const MemoryPlanInput& input, MemoryPlan& plan) {
  plan.components = ComponentsOf(input, plan);
  plan.need = MemoryNeed(MemoryPurpose::kWeights, plan.weight_bytes);
  for (const ComponentMemory& component : plan.components) plan.need += component.need;
}

size_t PageBytes(const MemoryPlanInput& input) { return input.geometry().page_bytes(); }
size_t SlotBytes(const MemoryPlanInput& input) { return BlockCache::SlotBytes(PageBytes(input)); }
size_t BlockBytes(const MemoryPlanInput& input) {
  return DensePoolView::BlockBytes(input.geometry());
}

// How many dense blocks are of use.
struct DenseDemand {
  int64_t least;   // for one short context
  int64_t wanted;  // for one long one, and windows
  int64_t most;
};

DenseDemand DenseDemandOf(const MemoryPlanInput& input) {
  const int64_t short_context = std::min(input.index.dense_below, input.max_model_len);
  const int64_t least = 4 + CeilDiv(short_context, kDenseBlockTokens);
  const int64_t context = 1 + CeilDiv(input.max_model_len, kDenseBlockTokens);
  const int64_t wanted = std::max(context + input.max_batch * kWaveWindowBlocks, least);
  return {.least = least,
          .wanted = wanted,
          .most = std::max<int64_t>(wanted, input.max_batch * context)};
}

// Dense blocks of all suspended requests together. On a CPU they are in the same memory as
// all else, of which they get what is left.
int32_t SuspendedBlocks(const MemoryPlanInput& input, const MemoryPlan& plan) {
  if (!input.preemption) return 0;
  const size_t block_bytes = SuspendedKv::HostBytesOf(input.geometry(), 1);
  const int64_t short_context = std::min(input.index.dense_below, input.max_model_len);
  // Each request's ring of window layers takes host blocks, but no dense ones.
  const int64_t ring = SuspendedKv::RingBlocksOf(
      input.geometry(), WindowLayers::RingBytes(input.geometry(), input.max_batch));
  const int64_t windows = std::min<int64_t>(input.max_batch * (kWaveWindowBlocks + ring),
                                            kSuspendedBytes / block_bytes);
  const int64_t wanted =
      std::max<int64_t>(windows, 1 + CeilDiv(short_context, kDenseBlockTokens) + ring);
  size_t blocks =
      static_cast<size_t>(std::min<int64_t>(wanted, plan.dense_blocks + input.max_batch * ring));
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
  return std::clamp(uint64_t{bytes / PartsOf(input) / SlotBytes(input)}, kSlotsMin,
                    MostSlots(input));
}

// The least bytes for slots and dense KV under which Split() has room for both, where weights and
// `others` are beside them.
size_t LeastBytes(const MemoryPlanInput& input, const DenseDemand& demand, size_t others) {
  const size_t block_bytes = BlockBytes(input);
  const size_t dense =
      std::max(input.dense_kv_bytes / block_bytes, static_cast<size_t>(demand.least)) * block_bytes;
  uint64_t slots = SlotsDue(input, (others + dense) / (PartsOf(input) - 1) * PartsOf(input));
  if (input.dense_kv_bytes != 0) slots = kSlotsMin;
  if (input.block_cache_bytes != 0) slots = input.block_cache_bytes / PageBytes(input);
  return dense + slots * SlotBytes(input);
}

// Gives slots and dense blocks their parts of `bytes`.
//
// REQUIRES: bytes >= LeastBytes().
void Split(const MemoryPlanInput& input, const DenseDemand& demand, size_t bytes,
           MemoryPlan& plan) {
  const size_t block_bytes = BlockBytes(input);
  const auto blocks_beside = [&](uint64_t slots) {
    const size_t taken = std::min(bytes, slots * SlotBytes(input));
    return static_cast<int64_t>((bytes - taken) / block_bytes);
  };
  const bool are_slots_given = input.block_cache_bytes != 0;
  const bool are_blocks_given = input.dense_kv_bytes != 0;
  const uint64_t due = are_slots_given
                           ? input.block_cache_bytes / PageBytes(input)
                           : SlotsDue(input, input.available_bytes - input.weight_bytes);
  int64_t blocks = std::max(demand.least, std::min(demand.wanted, blocks_beside(due)));
  if (are_blocks_given) blocks = static_cast<int64_t>(input.dense_kv_bytes / block_bytes);
  uint64_t slots = due;
  if (!are_slots_given) {
    const size_t rest = bytes - static_cast<size_t>(blocks) * block_bytes;
    slots = std::min(uint64_t{rest / SlotBytes(input)}, input.owns_memory ? MostSlots(input) : due);
  }
  if (input.owns_memory && !are_blocks_given) blocks = std::min(demand.most, blocks_beside(slots));
  plan.num_slots = static_cast<uint32_t>(slots);
  plan.dense_blocks = static_cast<int32_t>(blocks);
}

// All sizes but the numbers of slots and dense blocks, which are what is left.
MemoryPlan FixedSizes(const MemoryPlanInput& input) {
  MemoryPlan plan{.geometry = input.geometry(),
                  .heads = input.heads,
                  .weight_bytes = input.weight_bytes,
                  .arena_pages = input.arena_pages,
                  .max_model_len = input.max_model_len,
                  .synthetic_tokens = input.synthetic_tokens,
                  .prefill_rows = input.prefill_rows,
                  .max_batch = input.max_batch,
                  .tail_run = TailRun(input)};
  plan.max_step_rows = plan.max_batch + (plan.tail_run > 1 ? plan.tail_run : 0);
  plan.long_lane_tokens = plan.OfRequests(input.max_model_len);
  if (input.max_whole_prompt != 0) {
    plan.long_lane_tokens = std::min(plan.long_lane_tokens, input.max_whole_prompt);
  }
  plan.short_lane_tokens = std::min(input.index.dense_below, plan.long_lane_tokens);
  plan.meta_blocks = static_cast<int32_t>(
      ArenaCapacityTokens(plan.heads.ArenaOf(plan.geometry), input.arena_pages) /
      kDecodeSegmentTokens);
  if (input.backend.uses_transient_slots) {
    plan.num_transient_slots = kTransientSlotsPerRow * static_cast<uint32_t>(input.max_batch);
  }
  // Sequences that have ended keep their row until the background has let go of them, and prompts
  // are read while all rows of the batch are taken.
  plan.max_sequences = 2 * input.max_batch + 2;
  // A prompt in each lane, and for each sequence that holds memory a segment of generated tokens
  // or, where it has just outgrown dense attention, all of its context.
  plan.max_open_segments = static_cast<int32_t>(
      2 * (input.max_model_len / kPrefillSegmentTokens + 8) +
      plan.max_sequences * (1 + input.index.dense_below / kDecodeSegmentTokens));
  return plan;
}

absl::Status TooLittle(const MemoryPlanInput& input, const MemoryPlan& fixed, size_t least) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "memory: needs ", Gib(fixed.total_bytes() + least), " (weights ",
      Gib(fixed.need[MemoryPurpose::kWeights]), ", activations ",
      Gib(fixed.need[MemoryPurpose::kActivations]), ", index ",
      Gib(fixed.need[MemoryPurpose::kMetaIndex]), ", tables of the arena ",
      Gib(fixed.need[MemoryPurpose::kBlockCache]), ", the rest slots and dense KV), ", "there are ",
      Gib(input.available_bytes),
      "; use a smaller --max-model-len, --max-batch, --block-cache-bytes or arena, or a larger "
      "--dense-kv-bytes if that is what is short"));
}

}  // namespace

size_t MemoryPlan::suspended_bytes() const {
  return SuspendedKv::HostBytesOf(geometry, suspended_blocks);
}

std::string MemoryPlan::ToString() const {
  std::string text = absl::StrCat(
      "weights ", Gib(need[MemoryPurpose::kWeights]), ", activations ",
      Gib(need[MemoryPurpose::kActivations]), ", dense KV ", Gib(need[MemoryPurpose::kDenseKv]),
      " (", dense_blocks, " blocks), index ", Gib(need[MemoryPurpose::kMetaIndex]), " (",
      meta_blocks, " blocks), block cache ", Gib(need[MemoryPurpose::kBlockCache]), " (", num_slots,
      " slots), not used ", Gib(unused_bytes));
  if (geometry.has_window_layers()) {
    const auto rings = std::ranges::find(components, "window layers", &ComponentMemory::name);
    absl::StrAppend(&text, "; of dense KV ", Gib(rings->need[MemoryPurpose::kDenseKv]), " for ",
                    geometry.num_window_layers, " window layers of ", geometry.window_tokens,
                    " tokens");
  }
  if (draft.has_value()) {
    const auto of_draft = std::ranges::find(components, kDraftModel, &ComponentMemory::name);
    absl::StrAppend(&text, "; of all that ", Gib(of_draft->need.total()), " for the draft model (",
                    draft->max_texts, " texts of ", draft->window_tokens, " tokens)");
  }
  if (suspended_blocks > 0) {
    absl::StrAppend(&text, "; host memory for preempted requests ", Gib(suspended_bytes()));
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
  MemoryPlan plan = FixedSizes(input);
  if (input.draft.has_value()) {
    ASSIGN_OR_RETURN(plan.draft, DraftModel::SizesFor(input.draft->model, input.model.vocab_size,
                                                      input.max_model_len, input.max_batch));
  }
  AddUp(input, plan);
  const DenseDemand demand = DenseDemandOf(input);
  const size_t fixed = plan.total_bytes();
  const size_t given = std::max(input.dense_kv_bytes, input.block_cache_bytes);
  if (given > input.available_bytes) return TooLittle(input, plan, given);
  const size_t least = LeastBytes(input, demand, fixed - plan.weight_bytes);
  const size_t least_dense = static_cast<size_t>(demand.least) * BlockBytes(input);
  if (input.available_bytes < fixed || input.available_bytes - fixed < least ||
      (input.dense_kv_bytes != 0 && input.dense_kv_bytes < least_dense)) {
    return TooLittle(input, plan, least);
  }
  Split(input, demand, input.available_bytes - fixed, plan);
  AddUp(input, plan);
  plan.unused_bytes = input.available_bytes - plan.total_bytes();
  plan.suspended_blocks = SuspendedBlocks(input, plan);
  if (!input.owns_memory) plan.unused_bytes -= plan.suspended_bytes();
  plan.capacity_tokens = CapacitiesOf(
      {.max_model_len = input.max_model_len,
       .max_single_pass_tokens = plan.synthetic_tokens + plan.long_lane_tokens,
       .dense_blocks = plan.dense_blocks,
       .arena_tokens = ArenaCapacityTokens(plan.heads.ArenaOf(plan.geometry), input.arena_pages),
       .dense_below = input.index.dense_below,
       .has_window_layers = plan.geometry.has_window_layers()});
  return plan;
}

}  // namespace retroinfer
