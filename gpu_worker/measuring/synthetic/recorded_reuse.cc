#include "gpu_worker/measuring/synthetic/recorded_reuse.h"

#include <cmath>
#include <string_view>

namespace retroinfer {
namespace {

constexpr RecordedReuse kReuses[] = {
#include "gpu_worker/measuring/synthetic/recorded_reuse_table.inc"
};

double Distance(int64_t a, int64_t b) {
  return std::abs(std::log(static_cast<double>(a)) - std::log(static_cast<double>(b)));
}

}  // namespace

std::span<const RecordedReuse> RecordedReuses() { return kReuses; }

const RecordedReuse& ReuseFor(RecordedModel model, int64_t tokens) {
  const std::string_view name = model == RecordedModel::kNeedle ? "needle" : "code";
  const RecordedReuse* nearest = nullptr;
  for (const RecordedReuse& reuse : kReuses) {
    if (!std::string_view(reuse.trace).starts_with(name)) continue;
    if (nearest == nullptr || Distance(reuse.tokens, tokens) < Distance(nearest->tokens, tokens)) {
      nearest = &reuse;
    }
  }
  return *nearest;
}

}  // namespace retroinfer
