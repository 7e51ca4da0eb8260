// The attention policies: an entry has all that other components need to know of a policy. To add a
// policy: a kind and a name (attention_settings.h), an entry here, a class of its own.
//
// Threads: the table is constant.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/attention/attention_policy.h"
#include "gpu_worker/attention/retrieval_observer.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/kv/kv_memory.h"
#include "gpu_worker/kv/sequence_segments.h"
#include "gpu_worker/ops/backend/backend_needs.h"
#include "gpu_worker/ops/backend/ops.h"

namespace retroinfer {

// What policies are made from. All parts outlive the policies.
struct PolicyParts {
  Device* device = nullptr;
  Ops* ops = nullptr;
  Stream* stream = nullptr;  // compute
  KvMemory* memory = nullptr;
  BlockCache* cache = nullptr;
  SequenceSegments* segments = nullptr;
  int32_t num_query_heads = 0;
  int32_t max_batch = 0;
  int64_t max_tokens = 0;                 // of a context
  RetrievalObserver* observer = nullptr;  // may be null
};

// What the device memory of policies depends on, without that of KvMemory and SegmentBuilder.
struct PolicyLimits {
  KvGeometry geometry;
  int32_t num_query_heads = 0;
  int32_t max_batch = 0;
  int64_t max_tokens = 0;   // of a context
  float radius_weight = 0;  // of WaveIndexSettings
  BackendNeeds backend{};
};

// Memory of a worker for contexts.
struct ContextMemory {
  int64_t max_model_len = 0;           // tokens
  int64_t max_single_pass_tokens = 0;  // tokens; longest prompt that is prefilled in one part
  int32_t dense_blocks = 0;
  int64_t arena_tokens = 0;  // tokens whose segments fit into the arena
  int64_t dense_below = 0;   // WaveIndexSettings
  bool has_window_layers = false;
};

struct PolicyEntry {
  PolicyKind kind;
  // Tokens of the largest context that the policy can hold, at most max_model_len.
  int64_t (*capacity)(const ContextMemory& memory);
  bool reads_segments = false;            // prompts may use segments of other requests
  bool takes_synthetic_contexts = false;  // can be decorated with synthetic contexts
  absl::StatusOr<std::unique_ptr<AttentionPolicy>> (*create)(const PolicyParts& parts);
  MemoryNeed (*memory)(const PolicyLimits& limits);  // device memory that `create` takes
};

// By kind.
std::span<const PolicyEntry, kNumPolicies> PolicyTable();
inline const PolicyEntry& EntryOf(PolicyKind kind) {
  return PolicyTable()[static_cast<size_t>(kind)];
}

PolicyCapacities CapacitiesOf(const ContextMemory& memory);

// The policies of one engine, and what decorates them.
class PolicySet {
 public:
  static absl::StatusOr<PolicySet> Create(const PolicyParts& parts);

  // What requests of this kind attend through.
  AttentionPolicy& Of(PolicyKind kind) const { return *current_[static_cast<size_t>(kind)]; }
  // Replaces Of(kind) by `decorator`, which may forward to it.
  void Decorate(PolicyKind kind, std::unique_ptr<AttentionPolicy> decorator);

 private:
  std::array<AttentionPolicy*, kNumPolicies> current_{};
  std::vector<std::unique_ptr<AttentionPolicy>> owned_;
};

}  // namespace retroinfer
