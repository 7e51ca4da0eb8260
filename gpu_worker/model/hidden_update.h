// What a half of a layer does with the hidden state when its last product is made:
//
//   hidden += part, or the norm of part, where layers have norms of what they add (`post_norms`)
//   the norm of hidden that the next product takes
//
// `part` is summed over ranks first, where several share the model: with the norms as one operation
// of theirs (norm_of_sum.h).
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/model/model_table.h"
#include "gpu_worker/ops/backend/ops.h"

namespace retroinfer {

struct HiddenUpdateArgs {
  MatrixView hidden;                // [n, hidden], activation dtype
  MatrixView scratch;               // the same; may be where `next` goes
  MatrixView post_norm;             // [1, hidden]: the weight, where the layer has post_norms
  std::optional<RmsNormArgs> next;  // of `hidden`; none: whoever goes on makes it
};

// Threads: as `ops`.
class HiddenUpdate {
 public:
  // `ops` and `config`, of the rank, must outlive it.
  HiddenUpdate(Ops& ops, const ModelConfig& config, const LayerSpec& layer,
               const HiddenUpdateArgs& args)
      : ops_(ops), config_(config), has_post_norm_(layer.post_norms), args_(args) {}

  // Where the product belongs, and whether it is added to what is there.
  const MatrixView& part() const { return adds_at_once() ? args_.hidden : args_.scratch; }
  bool adds_at_once() const { return !has_post_norm_ && !is_split(); }

  // Enqueues the rest, behind the product.
  absl::Status Finish(Stream& stream) const;

 private:
  bool is_split() const { return config_.shard.has_value(); }
  RmsNormArgs PostNorm() const;

  Ops& ops_;
  const ModelConfig& config_;
  const bool has_post_norm_;
  const HiddenUpdateArgs args_;
};

}  // namespace retroinfer
