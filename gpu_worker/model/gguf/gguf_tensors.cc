#include "gpu_worker/model/gguf/gguf_tensors.h"

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/gguf/gguf_rows.h"

namespace retroinfer {
namespace {

constexpr char kRopeFactors[] = "rope_freqs.weight";  // read with the settings of RoPE

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

constexpr std::string_view kOfExperts = "_exps.weight";

// Whether a tensor is [experts][rows][columns], of as many experts as the model has.
bool IsOfExperts(const GgufTensor& tensor, const ModelConfig& config, std::string_view name) {
  return name.ends_with(kOfExperts) && tensor.shape.size() == 3 &&
         tensor.shape.front() == config.experts.count;
}

GgufTensor ExpertOf(const GgufTensor& all, int64_t expert) {
  const size_t size = all.bytes.size() / static_cast<size_t>(all.shape.front());
  const size_t begin = static_cast<size_t>(expert) * size;
  return {.blocks = all.blocks,
          .shape = {all.shape[1], all.shape[2]},
          .bytes = all.bytes.subspan(begin, size),
          .fd = all.fd,
          .file_offset = all.file_offset + begin};
}

}  // namespace

absl::Status GgufTensors::Add(const std::string& name, const GgufTensor& stored,
                              const ModelConfig& config, WeightType matrices) {
  absl::StatusOr<HostTensor> tensor = HostTensorOf(stored, config, name, matrices);
  if (!tensor.ok()) {
    return absl::Status(tensor.status().code(),
                        absl::StrCat(files_->path(), ": tensor \"", name, "\" ",
                                     std::string(tensor.status().message())));
  }
  tensors_.emplace(name, *std::move(tensor));
  return absl::OkStatus();
}

absl::StatusOr<GgufTensors> GgufTensors::Create(std::shared_ptr<const GgufFiles> files,
                                                const ModelConfig& config) {
  GgufTensors result(std::move(files));
  const WeightType matrices = MatrixType(*result.files_);
  for (const auto& [name, stored] : result.files_->tensors()) {
    if (name == kRopeFactors) continue;
    if (!IsOfExperts(stored, config, name)) {
      RETURN_IF_ERROR(result.Add(name, stored, config, matrices));
      continue;
    }
    const std::string stem = name.substr(0, name.size() - std::string_view("weight").size());
    for (int64_t expert = 0; expert < config.experts.count; ++expert) {
      RETURN_IF_ERROR(result.Add(absl::StrCat(stem, expert, ".weight"), ExpertOf(stored, expert),
                                 config, matrices));
    }
  }
  return result;
}

}  // namespace retroinfer
