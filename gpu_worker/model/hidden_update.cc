#include "gpu_worker/model/hidden_update.h"

#include <array>
#include <span>

#include "common/status/status_macros.h"

namespace retroinfer {

RmsNormArgs HiddenUpdate::PostNorm() const {
  return {.in = args_.scratch,
          .weight = args_.post_norm,
          .epsilon = config_.rms_norm_epsilon,
          .weight_offset = config_.norm_offset,
          .out = args_.hidden,
          .accumulate = true};
}

absl::Status HiddenUpdate::Finish(Stream& stream) const {
  std::array<RmsNormArgs, NormOfSumArgs::kMostNorms> room;
  size_t count = 0;
  if (has_post_norm_) room[count++] = PostNorm();
  if (args_.next.has_value()) room[count++] = *args_.next;
  const std::span<const RmsNormArgs> norms(room.data(), count);
  if (is_split()) {
    const AllReduceArgs sum = {.in = args_.scratch,
                               .out = has_post_norm_ ? args_.scratch : args_.hidden,
                               .accumulate = !has_post_norm_};
    if (norms.empty()) return ops_.collective().AllReduce(stream, sum);
    return ops_.collective().NormOfSum(stream, {.sum = sum, .norms = norms});
  }
  for (const RmsNormArgs& norm : norms) RETURN_IF_ERROR(ops_.model().RmsNorm(stream, norm));
  return absl::OkStatus();
}

}  // namespace retroinfer
