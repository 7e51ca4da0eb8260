#include "gpu_worker/model/shard_config.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

absl::Status Refuse(const TensorParallel& parallel, const std::string& reason) {
  return absl::InvalidArgumentError(
      absl::StrCat("the model cannot be split over ", parallel.num_ranks, " ranks: ", reason));
}

bool HeadsGoInto(const ModelConfig& whole, uint32_t ranks) {
  return whole.num_query_heads % ranks == 0 &&
         (whole.num_kv_heads % ranks == 0 || ranks % whole.num_kv_heads == 0);
}

absl::Status CheckHeads(const ModelConfig& whole, const TensorParallel& parallel) {
  if (HeadsGoInto(whole, static_cast<uint32_t>(parallel.num_ranks))) return absl::OkStatus();
  constexpr uint32_t kMostRanks = 8;  // of a worker
  std::vector<uint32_t> others;
  for (uint32_t ranks = 1; ranks <= kMostRanks; ++ranks) {
    if (HeadsGoInto(whole, ranks)) others.push_back(ranks);
  }
  return Refuse(
      parallel,
      absl::StrCat("it has ", whole.num_query_heads, " query heads and ", whole.num_kv_heads,
                   " KV heads; ranks divide the former, and divide or multiply the "
                   "latter: use ",
                   absl::StrJoin(others, ", ")));
}

KvHeadRange KvHeadsOf(const ModelConfig& whole, const TensorParallel& parallel) {
  const auto rank = static_cast<uint32_t>(parallel.rank);
  const auto ranks = static_cast<uint32_t>(parallel.num_ranks);
  const uint32_t heads = whole.num_kv_heads;
  if (heads >= ranks) return {rank * (heads / ranks), heads / ranks, heads};
  return {rank / (ranks / heads), 1, heads};
}

Share Times(const Share& share, int64_t factor) {
  return {share.first * factor, share.count * factor};
}

Share RowsOf(const TensorSpec& tensor, const ModelShard& shard, int64_t head_dim) {
  if (tensor.split == SplitAxis::kKvRows) {
    return Times({shard.kv_heads.first, shard.kv_heads.count}, head_dim);
  }
  if (tensor.split != SplitAxis::kRows) return {0, tensor.shape[0]};
  switch (tensor.role) {
    case TensorRole::kSinks:
      return shard.query_heads;
    case TensorRole::kQuery:
    case TensorRole::kQueryBias:
      return Times(shard.query_heads, head_dim);
    case TensorRole::kOutput:
      return shard.outputs;
    default:
      return shard.features;
  }
}

}  // namespace

int64_t FeatureUnit(const ModelConfig& config) {
  constexpr int64_t kLeast = 8;  // of 16 bits: what is read of memory at a time
  if (!config.quantization.has_value()) return kLeast;
  const StoredForm& form = config.quantization->form;
  return std::max({kLeast, form.scale_rows, form.scale_cols});  // powers of two, all of them
}

absl::StatusOr<ModelConfig> ShardConfig(const ModelConfig& whole, const TensorParallel& parallel) {
  RI_CHECK(!whole.shard.has_value());
  if (parallel.num_ranks < 1 || parallel.rank < 0 || parallel.rank >= parallel.num_ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", parallel.rank, " of ", parallel.num_ranks, " is none"));
  }
  if (parallel.is_all()) return whole;
  RETURN_IF_ERROR(CheckHeads(whole, parallel));
  ModelShard shard;
  shard.parallel = parallel;
  shard.query_heads = ShareOf(parallel, whole.num_query_heads);
  shard.kv_heads = KvHeadsOf(whole, parallel);
  shard.features = ShareOf(parallel, whole.intermediate_size, FeatureUnit(whole));
  if (whole.quantization.has_value()) {
    // The output projection may be codes, too; a vocabulary that is too small for that may do so.
    const int64_t unit = std::max(shard.output_unit, whole.quantization->form.scale_rows);
    if (whole.vocab_size >= unit * parallel.num_ranks) shard.output_unit = unit;
  }
  shard.outputs = ShareOf(parallel, whole.vocab_size, shard.output_unit);
  // Of all ranks, so that all refuse for the same reason.
  const int64_t feature_units =
      (whole.intermediate_size + FeatureUnit(whole) - 1) / FeatureUnit(whole);
  if (feature_units < parallel.num_ranks) {
    return Refuse(parallel, absl::StrCat("its feed-forward network has ", whole.intermediate_size,
                                         " features in units of ", FeatureUnit(whole), "; at most ",
                                         feature_units, " ranks have some"));
  }
  const int64_t output_units = (whole.vocab_size + shard.output_unit - 1) / shard.output_unit;
  if (output_units < parallel.num_ranks) {
    return Refuse(parallel,
                  absl::StrCat("its vocabulary has ", whole.vocab_size, " tokens in units of ",
                               shard.output_unit, "; at most ", output_units, " ranks have some"));
  }
  ModelConfig config = whole;
  config.num_query_heads = static_cast<uint32_t>(shard.query_heads.count);
  config.num_kv_heads = shard.kv_heads.count;
  config.intermediate_size = shard.features.count;
  config.shard = shard;
  // Tensors that say the shapes of others speak of whole ones, and are looked at there.
  if (config.quantization.has_value()) config.quantization->form.shape_end = "";
  return config;
}

TensorShare ShareOf(const TensorSpec& tensor, const ModelShard& shard, uint32_t head_dim) {
  TensorShare share;
  share.rows = RowsOf(tensor, shard, head_dim);
  share.cols = {0, tensor.shape.size() > 1 ? tensor.shape[1] : 1};
  if (tensor.split == SplitAxis::kColumns) {
    share.cols = tensor.role == TensorRole::kAttentionOutput ? Times(shard.query_heads, head_dim)
                                                             : shard.features;
  }
  share.is_zeros = tensor.split == SplitAxis::kFirst && shard.parallel.rank > 0;
  return share;
}

}  // namespace retroinfer
