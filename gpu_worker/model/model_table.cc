#include "gpu_worker/model/model_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"

namespace retroinfer {
namespace {

// What is known of a role, whatever the family.
struct RoleFacts {
  std::vector<int64_t> shape;  // empty: the layer has no such tensor
  SplitAxis split = SplitAxis::kNone;
  bool may_be_coded = false;
  bool may_be_rounded = false;
};

RoleFacts LayerMatrix(int64_t rows, int64_t cols, SplitAxis split) {
  return {.shape = {rows, cols}, .split = split, .may_be_coded = true, .may_be_rounded = true};
}

RoleFacts VectorIf(bool present, int64_t size, SplitAxis split = SplitAxis::kNone) {
  return {.shape = present ? std::vector<int64_t>{size} : std::vector<int64_t>(), .split = split};
}

RoleFacts FeedForwardFacts(const ModelConfig& config, TensorRole role, bool has_experts) {
  if (role == TensorRole::kRouter) {
    if (!has_experts) return {};
    // Which experts are chosen hangs on small differences, and there is little to gain.
    return {.shape = {config.experts.count, config.hidden_size}, .may_be_coded = true};
  }
  if (IsOfExpert(role) != has_experts) return {};
  if (role == TensorRole::kDown || role == TensorRole::kExpertDown) {
    return LayerMatrix(config.hidden_size, config.intermediate_size, SplitAxis::kColumns);
  }
  return LayerMatrix(config.intermediate_size, config.hidden_size, SplitAxis::kRows);
}

// `layer` is any of a model for what is of the whole model.
RoleFacts FactsOf(const ModelConfig& config, TensorRole role, const LayerSpec& layer) {
  const int64_t hidden = config.hidden_size;
  switch (role) {
    case TensorRole::kEmbedding:
      return {.shape = {config.vocab_size, hidden}};
    case TensorRole::kFinalNorm:
    case TensorRole::kAttentionNorm:
    case TensorRole::kFeedForwardNorm:
      return VectorIf(true, hidden);
    case TensorRole::kPostAttentionNorm:
    case TensorRole::kPostFeedForwardNorm:
      return VectorIf(layer.post_norms, hidden);
    case TensorRole::kOutput:
      return {
          .shape = {config.num_outputs(), hidden}, .split = SplitAxis::kRows, .may_be_coded = true};
    case TensorRole::kQueryNorm:
    case TensorRole::kKeyNorm:
      return VectorIf(layer.qk_norm, config.head_dim);
    case TensorRole::kQuery:
      return LayerMatrix(config.query_size(), hidden, SplitAxis::kRows);
    case TensorRole::kKey:
    case TensorRole::kValue:
      return LayerMatrix(config.kv_size(), hidden, SplitAxis::kKvRows);
    case TensorRole::kQueryBias:
      return VectorIf(layer.qkv_bias, config.query_size(), SplitAxis::kRows);
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
      return VectorIf(layer.qkv_bias, config.kv_size(), SplitAxis::kKvRows);
    case TensorRole::kAttentionOutput:
      return LayerMatrix(hidden, config.query_size(), SplitAxis::kColumns);
    case TensorRole::kAttentionOutputBias:
      return VectorIf(layer.output_bias, hidden, SplitAxis::kFirst);
    case TensorRole::kSinks:
      return VectorIf(layer.sinks, config.num_query_heads, SplitAxis::kRows);
    case TensorRole::kRouterBias:
      return VectorIf(layer.expert_biases, config.experts.count);
    case TensorRole::kExpertGateBias:
    case TensorRole::kExpertUpBias:
      return VectorIf(layer.expert_biases, config.intermediate_size, SplitAxis::kRows);
    case TensorRole::kExpertDownBias:
      return VectorIf(layer.expert_biases, hidden, SplitAxis::kFirst);
    case TensorRole::kGate:
    case TensorRole::kUp:
    case TensorRole::kDown:
    case TensorRole::kRouter:
    case TensorRole::kExpertGate:
    case TensorRole::kExpertUp:
    case TensorRole::kExpertDown:
      return FeedForwardFacts(config, role, layer.feed_forward == FeedForwardKind::kExperts);
  }
  return {};
}

// With the number of the expert, if it is one's.
std::string NameOf(const TensorName& name, int64_t expert) {
  const std::string text(name.name);
  if (expert == TensorSpec::kNoExpert) return text;
  const size_t star = text.find('*');
  RI_CHECK(star != std::string::npos);
  return absl::StrCat(text.substr(0, star), expert, text.substr(star + 1));
}

struct ProjectionRoles {
  std::vector<TensorRole> weights;
  std::vector<TensorRole> biases = {};
};

ProjectionRoles RolesOf(Projection projection, bool of_experts) {
  if (of_experts && projection == Projection::kGateUp) {
    return {{TensorRole::kExpertGate, TensorRole::kExpertUp},
            {TensorRole::kExpertGateBias, TensorRole::kExpertUpBias}};
  }
  if (of_experts && projection == Projection::kDown) {
    return {{TensorRole::kExpertDown}, {TensorRole::kExpertDownBias}};
  }
  switch (projection) {
    case Projection::kQkv:
      return {{TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue},
              {TensorRole::kQueryBias, TensorRole::kKeyBias, TensorRole::kValueBias}};
    case Projection::kAttentionOutput:
      return {{TensorRole::kAttentionOutput}, {TensorRole::kAttentionOutputBias}};
    case Projection::kRouter:
      return {{TensorRole::kRouter}, {TensorRole::kRouterBias}};
    case Projection::kGateUp:
      return {{TensorRole::kGate, TensorRole::kUp}};
    case Projection::kDown:
      return {{TensorRole::kDown}};
    case Projection::kOutput:
      return {{TensorRole::kOutput}};
  }
  return {};
}

}  // namespace

LayerSpec LayerOf(const ModelConfig& config, uint32_t layer) {
  const std::vector<uint32_t>& without = config.layers_without_rope;
  return {.feed_forward =
              config.experts.count > 0 ? FeedForwardKind::kExperts : FeedForwardKind::kDense,
          .rope = std::find(without.begin(), without.end(), layer) == without.end(),
          .qkv_bias = config.qkv_bias,
          .output_bias = config.output_bias,
          .expert_biases = config.expert_biases,
          .sinks = config.sinks,
          .qk_norm = config.qk_norm,
          .post_norms = config.post_norms,
          .window_rope = config.window_rope.has_value() && config.window_of(layer) > 0};
}

std::span<const Projection> ProjectionsOf(const LayerSpec& layer) {
  static constexpr Projection kDense[] = {Projection::kQkv, Projection::kAttentionOutput,
                                          Projection::kGateUp, Projection::kDown};
  static constexpr Projection kExperts[] = {Projection::kQkv, Projection::kAttentionOutput,
                                            Projection::kRouter, Projection::kGateUp,
                                            Projection::kDown};
  if (layer.feed_forward == FeedForwardKind::kExperts) return kExperts;
  return kDense;
}

ModelTable::ModelTable(const ModelConfig& config)
    : num_experts_(config.experts.count), names_(config.names) {
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    layers_.push_back(LayerOf(config, layer));
  }
  for (const TensorName& name : names_->of_model) Add(config, name, TensorSpec::kNoLayer);
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    for (const TensorName& name : names_->of_layer) Add(config, name, layer);
    for (const Projection projection : ProjectionsOf(layers_[layer])) {
      CheckProjection(projection, layer);
    }
  }
}

void ModelTable::Add(const ModelConfig& config, const TensorName& name, int64_t layer) {
  if (!IsOfExpert(name.role)) return Add(config, name, layer, TensorSpec::kNoExpert);
  for (int64_t expert = 0; expert < num_experts_; ++expert) Add(config, name, layer, expert);
}

void ModelTable::Add(const ModelConfig& config, const TensorName& name, int64_t layer,
                     int64_t expert) {
  const bool of_model = layer == TensorSpec::kNoLayer;
  RoleFacts facts =
      FactsOf(config, name.role, of_model ? LayerSpec() : layers_[static_cast<size_t>(layer)]);
  if (facts.shape.empty()) return;
  TensorSpec spec = {.role = name.role,
                     .layer = layer,
                     .expert = expert,
                     .shape = std::move(facts.shape),
                     .split = facts.split,
                     .may_be_coded = facts.may_be_coded,
                     .may_be_rounded = facts.may_be_rounded,
                     .stored = of_model ? std::string(name.name)
                                        : absl::StrCat(std::string(names_->layer_prefix), layer,
                                                       ".", NameOf(name, expert))};
  if (name.role == TensorRole::kOutput && config.tie_word_embeddings) {
    tied_output_ = std::move(spec.stored);
    spec.stored = Get(TensorRole::kEmbedding).stored;
  } else {
    StoredTensor& stored = stored_[spec.stored];
    if (stored.parts.empty()) {
      stored.shape = spec.shape;
    } else {
      spec.first_row = stored.shape.front();
      stored.shape.front() += spec.shape.front();
    }
    stored.parts.push_back(spec);
  }
  RI_CHECK(specs_.emplace(std::tuple(layer, name.role, expert), std::move(spec)).second);
}

const TensorSpec* ModelTable::Find(TensorRole role, int64_t layer, int64_t expert) const {
  const auto found = specs_.find({layer, role, expert});
  return found == specs_.end() ? nullptr : &found->second;
}

const TensorSpec& ModelTable::Get(TensorRole role, int64_t layer, int64_t expert) const {
  const TensorSpec* const spec = Find(role, layer, expert);
  RI_CHECK(spec != nullptr);
  return *spec;
}

ProjectionSpec ModelTable::Of(Projection projection, int64_t layer) const {
  const auto append = [](const std::string& name, std::vector<std::string>& names) {
    if (names.empty() || names.back() != name) names.push_back(name);
  };
  const bool has_experts =
      layer != TensorSpec::kNoLayer &&
      layers_[static_cast<size_t>(layer)].feed_forward == FeedForwardKind::kExperts;
  const ProjectionRoles roles = RolesOf(projection, has_experts);
  const bool of_experts = IsOfExpert(roles.weights.front());
  ProjectionSpec result;
  const auto add = [&](int64_t expert) {
    for (const TensorRole role : roles.weights) {
      const TensorSpec& spec = Get(role, layer, expert);
      result.in_features = spec.shape[1];
      result.out_features += spec.shape[0];
      result.may_be_rounded = spec.may_be_rounded;
      append(spec.stored, result.weights);
    }
    for (const TensorRole role : roles.biases) {
      const TensorSpec* const spec = Find(role, layer, expert);
      if (spec != nullptr) append(spec->stored, result.biases);
    }
  };
  if (of_experts) {
    for (int64_t expert = 0; expert < num_experts_; ++expert) add(expert);
    result.num_parts = num_experts_ * std::ssize(roles.weights);
  } else {
    add(TensorSpec::kNoExpert);
  }
  return result;
}

// Stored tensors are loaded whole.
void ModelTable::CheckProjection(Projection projection, int64_t layer) const {
  const ProjectionSpec spec = Of(projection, layer);
  const auto rows = [this](const std::vector<std::string>& names) {
    int64_t sum = 0;
    for (const std::string& name : names) sum += stored_.at(name).shape.front();
    return sum;
  };
  RI_CHECK(rows(spec.weights) == spec.out_features);
  RI_CHECK(spec.biases.empty() || rows(spec.biases) == spec.out_features);
}

bool ModelTable::IsOtherPart(std::string_view name) const {
  const auto begins = [name](std::string_view begin) { return name.starts_with(begin); };
  return std::any_of(names_->other_parts.begin(), names_->other_parts.end(), begins);
}

bool ModelTable::HasNoEffect(std::string_view name) const {
  const auto ends = [name](std::string_view end) { return name.ends_with(end); };
  return (!tied_output_.empty() && name == tied_output_) || IsOtherPart(name) ||
         std::any_of(names_->without_effect.begin(), names_->without_effect.end(), ends);
}

}  // namespace retroinfer
