#include "gpu_worker/engine/draft_tending.h"

#include <cstdint>
#include <vector>

#include "gpu_worker/ops/model/sampling.h"

namespace retroinfer {
namespace {

// Tokens that are indexed between two steps, of all requests: some 50 us of the engine's thread. A
// prompt of 128K tokens is indexed within its first 16 steps.
constexpr int64_t kIndexedAtATime = 8192;

}  // namespace

void TendDrafts(const LiveRequests& live, DraftModel* model) {
  int64_t left = kIndexedAtATime;
  std::vector<uint64_t> decoding;
  for (const auto& one : live) {
    if (one->phase != RequestPhase::kDecoding || !one->drafting.has_value()) continue;
    if (left > 0) left -= one->drafting->Index(left);
    if (!one->has_first_token()) continue;  // what comes next is given
    one->drafting->Draft(kMaxSamplingAhead);
    if (model != nullptr) decoding.push_back(one->sequence->id());
  }
  if (model != nullptr) model->Keep(decoding);
}

}  // namespace retroinfer
