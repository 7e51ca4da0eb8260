#include "gpu_worker/engine/block_demand.h"

#include <algorithm>

namespace retroinfer {

BlockDemand::BlockDemand(const AttentionPolicy& policy, const AttentionSettings& settings,
                         int64_t prompt_tokens, int64_t max_tokens, bool takes_all)
    : policy_(&policy),
      settings_(settings),
      prompt_tokens_(prompt_tokens),
      max_tokens_(max_tokens),
      takes_all_(takes_all) {
  OnReleased(0);
}

void BlockDemand::SetTarget(int64_t length, int64_t reach) {
  const auto need = [&](int64_t to) {
    return policy_->NeedWhile(settings_, {.prompt_tokens = prompt_tokens_,
                                          .total_tokens = prompt_tokens_ + max_tokens_,
                                          .from = prompt_tokens_ + length,
                                          .to = prompt_tokens_ + to});
  };
  target_reach_ = takes_all_ ? max_tokens_ : std::min(reach, max_tokens_);
  peak_ = need(max_tokens_);
  target_ = need(target_reach_);
}

void BlockDemand::OnReleased(int64_t length) {
  reach_ = 0;
  SetTarget(length, length + kAtFirst);
}

void BlockDemand::Lengthen(int64_t length, int64_t max_tokens) {
  max_tokens_ = max_tokens;
  SetTarget(length, std::max(target_reach_, std::min(length + kAhead, max_tokens)));
}

bool BlockDemand::OnGrown(int64_t length) {
  const int64_t least = std::min(length + kAhead, max_tokens_);
  // The blocks held suffice, or the request has asked already: a target that moved at each token
  // would make each token a request for one block.
  if (reach_ >= least || target_reach_ >= least) return false;
  SetTarget(length, length + 2 * kAhead);
  return true;
}

}  // namespace retroinfer
