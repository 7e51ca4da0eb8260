// Which attention policy a request uses, and its budgets.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#include "gpu_worker/ops/index/cluster_select.h"

namespace retroinfer {

// What each needs, holds and is made from is in policy_table.h.
enum class PolicyKind : uint8_t {
  kFull,       // exact attention over the whole context, in device memory
  kWave,       // tripartite attention: steady zone, retrieved clusters, estimated clusters
  kStreaming,  // the sink and a window of the newest tokens
};
// By kind. The API's enum has the same names, behind ATTENTION_POLICY_ and in capitals.
inline constexpr std::string_view kPolicyNames[] = {"full", "wave", "streaming"};
inline constexpr size_t kNumPolicies = std::size(kPolicyNames);

constexpr std::string_view PolicyName(PolicyKind kind) {
  return kPolicyNames[static_cast<size_t>(kind)];
}
// Returns nothing for a name that no policy has.
constexpr std::optional<PolicyKind> PolicyOfName(std::string_view name) {
  for (size_t i = 0; i < kNumPolicies; ++i) {
    if (kPolicyNames[i] == name) return static_cast<PolicyKind>(i);
  }
  return std::nullopt;
}

// How the rows of a prompt attend. The API's enum has the same names, behind PREFILL_.
enum class PrefillKind : uint8_t {
  kExact,   // to all that the policy lets them see
  kSparse,  // to chosen blocks of it (ops/attention/block_choice.h); not with policy streaming
  // As kExact but for the prompt's end, which decode steps are fed: policy wave attends there
  // through its index (docs/decisions/0098-tails-attend-by-the-index.md).
  kIndexed,
};
inline constexpr std::string_view kPrefillNames[] = {"exact", "sparse", "indexed"};

// Returns nothing for a name that no kind has.
constexpr std::optional<PrefillKind> PrefillOfName(std::string_view name) {
  for (size_t i = 0; i < std::size(kPrefillNames); ++i) {
    if (kPrefillNames[i] == name) return static_cast<PrefillKind>(i);
  }
  return std::nullopt;
}

// Of kIndexed: how much of the prompt's end steps are fed, at least.
inline constexpr int32_t kDefaultTailTokens = 256;
inline constexpr int32_t kMaxTailTokens = 4096;
// A block of KV: runs are cut where blocks are, so that a run needs one at most, and no segment
// goes live within it.
inline constexpr int32_t kMaxTailRun = 64;
constexpr bool IsTailRun(int32_t rows) {
  return rows >= 1 && rows <= kMaxTailRun && std::has_single_bit(static_cast<uint32_t>(rows));
}

// A number of tokens for each policy: the largest context, prompt and output, that it can hold.
struct PolicyCapacities {
  std::array<int64_t, kNumPolicies> tokens{};
  int64_t& operator[](PolicyKind kind) { return tokens[static_cast<size_t>(kind)]; }
  int64_t operator[](PolicyKind kind) const { return tokens[static_cast<size_t>(kind)]; }
};

inline constexpr int32_t kMinStreamingWindow = 64;
inline constexpr int32_t kMaxStreamingWindow = 1 << 20;

struct AttentionSettings {
  PolicyKind policy = PolicyKind::kWave;
  PrefillKind prefill = PrefillKind::kExact;
  int32_t tail_tokens = kDefaultTailTokens;  // PrefillKind::kIndexed; at most kMaxTailTokens
  // PrefillKind::kIndexed: neighbouring tokens of the end that share what they retrieve, a power of
  // two, at most kMaxTailRun; 1: each retrieves for itself.
  int32_t tail_run = 1;
  // Shares of a sequence's clusters, in [0, 1]; retrieval + estimation at most 1 after capping.
  // Where tokens have codes, retrieval is a share of the tokens.
  double retrieval_ratio = 0.018;
  double estimation_ratio = 0.232;
  GroupRanking ranking = GroupRanking::kMaxOfSoftmax;
  // Policy wave: the share of the softmax mass that a step may leave to estimates, in [0, 1); the
  // retrieval zone grows for it (wave_index/retrieval_width.h). 0: it does not.
  double max_unseen_mass = 0;
  // Policy streaming: newest tokens that are attended besides the sink; kept in blocks of 64.
  int32_t streaming_window = 4096;
};

}  // namespace retroinfer
