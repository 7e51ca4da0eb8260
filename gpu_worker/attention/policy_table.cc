#include "gpu_worker/attention/policy_table.h"

#include <algorithm>
#include <utility>

#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/attention/full_policy.h"
#include "gpu_worker/attention/streaming_policy.h"
#include "gpu_worker/attention/wave_policy.h"

namespace retroinfer {
namespace {

// Of policies that attend to dense zones alone.
MemoryNeed DenseMemory(const PolicyLimits& limits) {
  return DenseZoneBatch::MemoryOf(limits.max_batch, limits.num_query_heads,
                                  static_cast<int32_t>(limits.geometry.head_dim), limits.backend);
}

// --- full

int64_t FullCapacity(const ContextMemory& memory) {
  const int64_t in_blocks = int64_t{memory.dense_blocks - 1} * kDenseBlockTokens + kSinkTokens;
  return std::min({memory.max_model_len, memory.max_single_pass_tokens, in_blocks});
}

absl::StatusOr<std::unique_ptr<AttentionPolicy>> CreateFull(const PolicyParts& parts) {
  return FullPolicy::Create(*parts.device, parts.ops->attention(), *parts.stream,
                            parts.memory->dense_pool(), parts.memory->tables(),
                            parts.segments->stretches(), parts.num_query_heads, parts.max_batch);
}

// --- wave

// Short contexts stay dense; of long ones all but sink and window is in the arena.
int64_t WaveCapacity(const ContextMemory& memory) {
  const int64_t indexed =
      memory.arena_tokens == 0 ? 0 : kSinkTokens + memory.arena_tokens + kDenseBlockTokens;
  const int64_t dense = std::min(FullCapacity(memory), memory.dense_below);
  return std::min({memory.max_model_len, memory.max_single_pass_tokens, std::max(dense, indexed)});
}

MemoryNeed WaveMemory(const PolicyLimits& limits) {
  return DenseZoneBatch::MemoryOf(limits.max_batch) +
         WaveDecode::MemoryOf(limits.geometry,
                              {.num_query_heads = limits.num_query_heads,
                               .max_batch = limits.max_batch,
                               .max_tokens = limits.max_tokens,
                               .radius_weight = limits.radius_weight},
                              limits.backend);
}

absl::StatusOr<std::unique_ptr<AttentionPolicy>> CreateWave(const PolicyParts& parts) {
  ASSIGN_OR_RETURN(std::unique_ptr<WaveDecode> decode,
                   WaveDecode::Create(*parts.device, *parts.ops, *parts.stream, *parts.cache,
                                      parts.memory->dense_pool(), parts.memory->meta_pool(),
                                      {.num_query_heads = parts.num_query_heads,
                                       .max_batch = parts.max_batch,
                                       .max_tokens = parts.max_tokens,
                                       .radius_weight = parts.segments->settings().radius_weight}));
  return WavePolicy::Create(parts.max_batch, {.device = parts.device,
                                              .ops = &parts.ops->attention(),
                                              .stream = parts.stream,
                                              .memory = parts.memory,
                                              .segments = parts.segments,
                                              .decode = std::move(decode),
                                              .observer = parts.observer});
}

// --- streaming

// With a window of the default size, any; else what is dense. None where the model has windows of
// its own: rows of a part are not positions then, by which window layers find their tokens.
int64_t StreamingCapacity(const ContextMemory& memory) {
  if (memory.has_window_layers) return 0;
  const int64_t window = AttentionSettings().streaming_window + 2 * kDenseBlockTokens;
  const bool holds_window = memory.max_single_pass_tokens >= window + kSinkTokens &&
                            int64_t{memory.dense_blocks - 1} * kDenseBlockTokens >= window;
  return holds_window ? memory.max_model_len : FullCapacity(memory);
}

absl::StatusOr<std::unique_ptr<AttentionPolicy>> CreateStreaming(const PolicyParts& parts) {
  return StreamingPolicy::Create(*parts.device, parts.ops->attention(), *parts.stream,
                                 *parts.memory, parts.num_query_heads, parts.max_batch);
}

constexpr PolicyEntry kTable[] = {
    {.kind = PolicyKind::kFull,
     .capacity = FullCapacity,
     .reads_segments = true,
     .takes_synthetic_contexts = true,
     .create = CreateFull,
     .memory = DenseMemory},
    {.kind = PolicyKind::kWave,
     .capacity = WaveCapacity,
     .reads_segments = true,
     .takes_synthetic_contexts = true,
     .create = CreateWave,
     .memory = WaveMemory},
    {.kind = PolicyKind::kStreaming,
     .capacity = StreamingCapacity,
     .create = CreateStreaming,
     .memory = DenseMemory},
};

constexpr bool IsByKind() {
  for (size_t i = 0; i < std::size(kTable); ++i) {
    if (kTable[i].kind != static_cast<PolicyKind>(i)) return false;
  }
  return std::size(kTable) == kNumPolicies;
}
static_assert(IsByKind(), "an entry for each kind, in the order of kinds");

}  // namespace

std::span<const PolicyEntry, kNumPolicies> PolicyTable() { return kTable; }

PolicyCapacities CapacitiesOf(const ContextMemory& memory) {
  PolicyCapacities capacities;
  for (const PolicyEntry& entry : kTable) capacities[entry.kind] = entry.capacity(memory);
  return capacities;
}

absl::StatusOr<PolicySet> PolicySet::Create(const PolicyParts& parts) {
  PolicySet set;
  for (const PolicyEntry& entry : kTable) {
    ASSIGN_OR_RETURN(std::unique_ptr<AttentionPolicy> policy, entry.create(parts));
    set.current_[static_cast<size_t>(entry.kind)] = policy.get();
    set.owned_.push_back(std::move(policy));
  }
  return set;
}

void PolicySet::Decorate(PolicyKind kind, std::unique_ptr<AttentionPolicy> decorator) {
  RI_CHECK(decorator != nullptr);
  current_[static_cast<size_t>(kind)] = decorator.get();
  owned_.push_back(std::move(decorator));
}

}  // namespace retroinfer
