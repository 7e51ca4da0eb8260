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
  Leave(0);
}

void BlockDemand::Want(int64_t length, int64_t reach) {
  const auto need = [&](int64_t to) {
    return policy_->NeedWhile(settings_, {.prompt_tokens = prompt_tokens_,
                                          .total_tokens = prompt_tokens_ + max_tokens_,
                                          .from = prompt_tokens_ + length,
                                          .to = prompt_tokens_ + to});
  };
  wanted_reach_ = takes_all_ ? max_tokens_ : std::min(reach, max_tokens_);
  most_ = need(max_tokens_);
  wanted_ = need(wanted_reach_);
}

void BlockDemand::Leave(int64_t length) {
  reach_ = 0;
  Want(length, length + kAtFirst);
}

bool BlockDemand::Advance(int64_t length) {
  const int64_t least = std::min(length + kAhead, max_tokens_);
  if (reach_ >= least || wanted_reach_ >= least) return false;
  Want(length, length + 2 * kAhead);
  return true;
}

}  // namespace retroinfer
