#include "gpu_worker/model/gguf/gguf_tensors.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/gguf/gguf_rows.h"

namespace retroinfer {
namespace {

struct TensorName {
  std::string_view gguf;
  std::string_view hugging_face;
};
constexpr TensorName kNames[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};
// Behind "blk.N." and "model.layers.N.".
constexpr TensorName kLayerNames[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
};
constexpr std::string_view kLayer = "blk.";
constexpr char kRopeFactors[] = "rope_freqs.weight";  // read with the settings of RoPE

template <size_t n>
std::optional<std::string_view> Find(const TensorName (&names)[n], std::string_view name) {
  const auto* const found = std::find_if(std::begin(names), std::end(names),
                                         [&](const TensorName& t) { return t.gguf == name; });
  return found == std::end(names) ? std::nullopt
                                  : std::optional<std::string_view>(found->hugging_face);
}

// The type that matrices are to have: their own, if all have the same, else bf16.
WeightType MatrixType(const GgufFiles& files) {
  std::optional<WeightType> type;
  for (const auto& [name, tensor] : files.tensors()) {
    if (tensor.shape.size() < 2) continue;
    if (!tensor.blocks->plain.has_value()) return WeightType::kBf16;
    if (type.value_or(*tensor.blocks->plain) != *tensor.blocks->plain) return WeightType::kBf16;
    type = tensor.blocks->plain;
  }
  return type.value_or(WeightType::kBf16);
}

bool IsPermuted(const ModelConfig& config, std::string_view name) {
  return config.family == ModelFamily::kLlama &&
         (name.ends_with(".attn_q.weight") || name.ends_with(".attn_k.weight"));
}

absl::StatusOr<HostTensor> HostTensorOf(const GgufTensor& stored, const ModelConfig& config,
                                        std::string_view name, WeightType matrices) {
  HostTensor tensor{.shape = stored.shape,
                    .stored = stored.bytes,
                    .fd = stored.fd,
                    .file_offset = stored.file_offset};
  const bool is_vector = stored.shape.size() == 1;
  tensor.type = is_vector ? stored.blocks->plain.value_or(WeightType::kBf16) : matrices;
  const bool is_permuted = IsPermuted(config, name);
  if (!is_permuted && stored.blocks->plain == tensor.type) return tensor;
  if (is_permuted && (is_vector || stored.rows() % config.head_dim != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("has shape [", absl::StrJoin(stored.shape, ", "),
                                                   "]; needs whole heads of ", config.head_dim,
                                                   " rows"));
  }
  tensor.coding = std::make_shared<GgufRows>(
      stored, tensor.type, is_permuted ? GgufRows::Order::kPairsOfRope : GgufRows::Order::kAsStored,
      config.head_dim);
  return tensor;
}

}  // namespace

std::optional<std::string> HuggingFaceTensorName(std::string_view name) {
  if (!name.starts_with(kLayer)) {
    const auto found = Find(kNames, name);
    if (!found.has_value()) return std::nullopt;
    return std::string(*found);
  }
  name.remove_prefix(kLayer.size());
  const size_t point = name.find('.');
  if (point == std::string_view::npos) return std::nullopt;
  const std::string digits(name.substr(0, point));
  uint32_t layer = 0;
  // Written as it would be written here: no sign, no zero in front.
  if (!absl::SimpleAtoi(digits, &layer) || absl::StrCat(layer) != digits) return std::nullopt;
  const auto found = Find(kLayerNames, name.substr(point + 1));
  if (!found.has_value()) return std::nullopt;
  return absl::StrCat("model.layers.", layer, ".", std::string(*found));
}

absl::StatusOr<GgufTensors> GgufTensors::Create(std::shared_ptr<const GgufFiles> files,
                                                const ModelConfig& config) {
  GgufTensors result(std::move(files));
  const WeightType matrices = MatrixType(*result.files_);
  for (const auto& [name, stored] : result.files_->tensors()) {
    if (name == kRopeFactors) continue;
    const auto error = [&, &name = name](const absl::Status& status) {
      return absl::Status(status.code(), absl::StrCat(result.files_->path(), ": tensor \"", name,
                                                      "\" ", std::string(status.message())));
    };
    const std::optional<std::string> known = HuggingFaceTensorName(name);
    if (!known.has_value()) {
      return error(absl::InvalidArgumentError(
          absl::StrCat("is no part of a ", std::string(ModelFamilyName(config.family)),
                       " model as it is supported; using the model without it would be wrong")));
    }
    absl::StatusOr<HostTensor> tensor = HostTensorOf(stored, config, name, matrices);
    if (!tensor.ok()) return error(tensor.status());
    result.tensors_.emplace(*known, *std::move(tensor));
  }
  return result;
}

}  // namespace retroinfer
