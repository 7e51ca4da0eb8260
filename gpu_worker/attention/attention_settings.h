// Which attention policy a request uses, and its budgets.
#pragma once

#include <cstdint>
#include <string_view>

#include "gpu_worker/ops/index/cluster_select.h"

namespace retroinfer {

enum class PolicyKind {
  kFull,  // exact attention over the whole context, in device memory
  kWave,  // tripartite attention: steady zone, retrieved clusters, estimated clusters
};
constexpr std::string_view PolicyName(PolicyKind kind) {
  return kind == PolicyKind::kFull ? "full" : "wave";
}

struct AttentionSettings {
  PolicyKind policy = PolicyKind::kWave;
  // Shares of a sequence's clusters, in [0, 1]; retrieval + estimation at most 1 after capping.
  double retrieval_ratio = 0.018;
  double estimation_ratio = 0.232;
  GroupRanking ranking = GroupRanking::kMaxOfSoftmax;
};

}  // namespace retroinfer
