#include "gpu_worker/model/largest_part.h"

#include <algorithm>

#include "common/status/status_macros.h"
#include "gpu_worker/model/shard_config.h"

namespace retroinfer {

absl::StatusOr<ModelConfig> LargestPart(const ModelConfig& whole, const TensorParallel& parallel,
                                        KvHeadRange* heads) {
  ASSIGN_OR_RETURN(ModelConfig part, ShardConfig(whole, parallel));
  if (!part.shard.has_value()) return part;
  *heads = part.shard->kv_heads;
  part.shard.reset();
  for (int rank = 0; rank < parallel.num_ranks; ++rank) {
    ASSIGN_OR_RETURN(const ModelConfig other,
                     ShardConfig(whole, {.rank = rank, .num_ranks = parallel.num_ranks}));
    part.intermediate_size = std::max(part.intermediate_size, other.intermediate_size);
  }
  return part;
}

}  // namespace retroinfer
