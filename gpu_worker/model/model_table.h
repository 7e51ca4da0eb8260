// What a model is made of, as a table: what each layer is, and each tensor with its name, its shape
// and what may be done with it. Loading, random weights, sizes, the balance of channels and the
// fingerprint follow from it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "gpu_worker/model/model_config.h"
#include "gpu_worker/model/tensor_names.h"

namespace retroinfer {

// The values of both are part of the fingerprint, where they are not 1: never renumber.
enum class AttentionKind : uint32_t { kFull = 1 };
enum class FeedForwardKind : uint32_t {
  kDense = 1,    // SwiGLU
  kExperts = 2,  // several of them, of which a router chooses some for each token
};

struct LayerSpec {
  AttentionKind attention = AttentionKind::kFull;
  FeedForwardKind feed_forward = FeedForwardKind::kDense;
  bool rope = true;            // turns queries and keys by their positions
  bool qkv_bias = false;       // of queries, keys and values
  bool output_bias = false;    // of what attention adds
  bool expert_biases = false;  // of the router and of each expert
  bool sinks = false;          // query heads have a logit without a value
  bool qk_norm = false;        // of each query and key head, before RoPE
  bool post_norms = false;     // of what attention and the feed-forward network add
  bool window_rope = false;    // RoPE is ModelConfig::window_rope
};

// REQUIRES: layer < config.num_layers.
LayerSpec LayerOf(const ModelConfig& config, uint32_t layer);

// How ranks of tensor parallelism share a tensor (shard_config.h).
enum class SplitAxis : uint8_t {
  kNone,    // each rank has all of it
  kRows,    // each rank has its rows
  kKvRows,  // each rank has the rows of its KV heads; ranks beyond their number share heads
  kColumns,
  kFirst,  // the first rank has it, the others zeros: of what is added to a sum over ranks
};

// A tensor of the model: all of a stored tensor, or rows of one.
struct TensorSpec {
  static constexpr int64_t kNoLayer = -1;
  static constexpr int64_t kNoExpert = -1;

  TensorRole role = TensorRole::kEmbedding;
  int64_t layer = kNoLayer;
  int64_t expert = kNoExpert;
  std::vector<int64_t> shape;
  SplitAxis split = SplitAxis::kNone;
  // Whether a quantized checkpoint may store it as codes; whether numbers may become codes.
  bool may_be_coded = false;
  bool may_be_rounded = false;
  std::string stored;     // the name of the tensor that holds it
  int64_t first_row = 0;  // of the stored tensor
};

// A tensor of a checkpoint.
struct StoredTensor {
  std::vector<int64_t> shape;
  std::vector<TensorSpec> parts;  // all rows, in order; never empty

  bool may_be_coded() const { return parts.front().may_be_coded; }
  bool may_be_rounded() const { return parts.front().may_be_rounded; }
};

// A matrix that is multiplied as one: what its parts give lies side by side in the result.
enum class Projection : uint8_t {
  kQkv,  // queries, keys, values
  kAttentionOutput,
  kRouter,
  kGateUp,  // gate, then up; of experts those of the first, then those of the second and so on
  kDown,
  kOutput,  // of the model: logits
};
// Those of a layer.
std::span<const Projection> ProjectionsOf(const LayerSpec& layer);
inline constexpr TensorRole kLayerNorms[] = {
    TensorRole::kAttentionNorm, TensorRole::kFeedForwardNorm,   TensorRole::kQueryNorm,
    TensorRole::kKeyNorm,       TensorRole::kPostAttentionNorm, TensorRole::kPostFeedForwardNorm};

struct ProjectionSpec {
  int64_t in_features = 0;
  int64_t out_features = 0;
  // Which a grouped product takes by themselves: gates, ups and downs of experts.
  int64_t num_parts = 1;
  std::vector<std::string> weights;  // stored tensors, one below the other: [out, in]
  std::vector<std::string> biases;   // the same of [out]; may be empty
  bool may_be_rounded = false;
};

// Threads: immutable.
class ModelTable {
 public:
  // REQUIRES: `config` is of ReadModelConfig or NamedModelShape, but for its names, which name each
  //           role of the model once, and put what is multiplied as one, and only that, into a
  //           tensor.
  explicit ModelTable(const ModelConfig& config);
  ModelTable(const ModelTable&) = delete;
  ModelTable& operator=(const ModelTable&) = delete;

  const std::vector<LayerSpec>& layers() const { return layers_; }
  // What a checkpoint must hold, by name.
  const std::map<std::string, StoredTensor>& stored() const { return stored_; }

  // Null if the model has no such tensor. The output projection of a model with tied embeddings is
  // the embedding's stored tensor (of whose parts it is none).
  const TensorSpec* Find(TensorRole role, int64_t layer = TensorSpec::kNoLayer,
                         int64_t expert = TensorSpec::kNoExpert) const;
  // REQUIRES: there is one.
  const TensorSpec& Get(TensorRole role, int64_t layer = TensorSpec::kNoLayer,
                        int64_t expert = TensorSpec::kNoExpert) const;
  ProjectionSpec Of(Projection projection, int64_t layer = TensorSpec::kNoLayer) const;

  // Whether a checkpoint may hold `name`, which is not in stored(): without it nothing changes.
  bool HasNoEffect(std::string_view name) const;
  // Whether `name` is of a part of the model that is not served: the one that sees images.
  bool IsOtherPart(std::string_view name) const;

 private:
  void Add(const ModelConfig& config, const TensorName& name, int64_t layer);
  void Add(const ModelConfig& config, const TensorName& name, int64_t layer, int64_t expert);
  void CheckProjection(Projection projection, int64_t layer) const;

  std::vector<LayerSpec> layers_;
  std::map<std::string, StoredTensor> stored_;
  std::map<std::tuple<int64_t, TensorRole, int64_t>, TensorSpec> specs_;  // by layer and expert
  int64_t num_experts_ = 0;                                               // of a layer of experts
  const TensorNames* names_;
  std::string tied_output_;  // the name of an output projection that would be ignored
};

}  // namespace retroinfer
