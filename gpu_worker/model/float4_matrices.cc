#include "gpu_worker/model/float4_matrices.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/e2m1.h"
#include "gpu_worker/model/model_table.h"
#include "gpu_worker/model/small_floats.h"
#include "gpu_worker/ops/model/e4m3.h"

namespace retroinfer {
namespace {

constexpr size_t kBf16Bytes = 2;

// A tensor of scales, as it is stored.
struct Scales {
  std::string name;
  std::span<const std::byte> bytes;
};

// Codes, rows of whole groups, as numbers in bf16.
class Float4Numbers final : public TensorCoding {
 public:
  // `global`: of forms that have one, an f32.
  Float4Numbers(const Float4Form& form, Scales scales, Scales global)
      : form_(form), scales_(std::move(scales)), global_(std::move(global)) {}

  Extent StoredExtent(size_t begin, size_t size) const override {
    if (size == 0) return {};
    const size_t first = begin / kBf16Bytes / 2;
    return {first, (begin + size - 1) / kBf16Bytes / 2 - first + 1};
  }

  void Decode(std::span<const std::byte> stored, size_t begin,
              std::span<std::byte> out) const override {
    RI_CHECK(begin % kBf16Bytes == 0 && out.size() % kBf16Bytes == 0);
    const std::array<float, 256> factors = Factors();
    const auto group = static_cast<size_t>(form_.group);
    const size_t first_pair = begin / kBf16Bytes / 2;
    const size_t end = (begin + out.size()) / kBf16Bytes;
    std::byte* target = out.data();
    for (size_t at = begin / kBf16Bytes; at < end;) {  // one group, or what of it is wanted
      const size_t count = std::min(end - at, group - at % group);
      const float factor = factors[static_cast<uint8_t>(scales_.bytes[at / group])];
      std::array<uint16_t, 16> numbers;
      for (size_t code = 0; code < numbers.size(); ++code) {
        numbers[code] = ToBf16(kE2m1[code] * factor);
      }
      for (size_t i = at; i < at + count; ++i, target += kBf16Bytes) {
        const auto pair = static_cast<uint8_t>(stored[i / 2 - first_pair]);
        std::memcpy(target, &numbers[i % 2 == 0 ? pair & 15 : pair >> 4], kBf16Bytes);
      }
      at += count;
    }
  }

  absl::Status Check() const override {
    const float global = Global();
    if (!std::isfinite(global) || global <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", global_.name, "\" holds ", global,
                       "; the scale of a matrix is finite and above zero"));
    }
    std::array<bool, 256> is_sound;
    const std::array<float, 256> factors = Factors();
    for (size_t scale = 0; scale < is_sound.size(); ++scale) {
      const float largest = FromBf16(ToBf16(kE2m1[kE2m1Largest] * factors[scale]));
      is_sound[scale] = std::isfinite(largest) && !std::signbit(largest);
    }
    for (const std::byte scale : scales_.bytes) {
      const auto bits = static_cast<uint8_t>(scale);
      if (is_sound[bits]) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor \"", scales_.name, "\" holds ", ScaleOf(bits),
          "; a scale is not below zero, and its codes stand for finite numbers of 16 bits"));
    }
    return absl::OkStatus();
  }

 private:
  float Global() const {
    float global = 1;
    if (!global_.bytes.empty()) std::memcpy(&global, global_.bytes.data(), sizeof(global));
    return global;
  }
  float ScaleOf(uint8_t bits) const {
    if (form_.scale_type == WeightType::kU8) return FromE8m0(bits);
    return IsE4m3Nan(bits) ? std::numeric_limits<float>::quiet_NaN() : FromE4m3(bits);
  }
  // What codes are multiplied by, for each scale.
  std::array<float, 256> Factors() const {
    const float global = Global();
    std::array<float, 256> factors;
    for (size_t i = 0; i < factors.size(); ++i) {
      const float scale = ScaleOf(static_cast<uint8_t>(i));
      factors[i] = form_.global_divides ? scale / global : scale * global;
    }
    return factors;
  }

  const Float4Form form_;
  const Scales scales_;
  const Scales global_;
};

// Finds the tensors of matrices.
class Unpacker {
 public:
  Unpacker(const Float4Form& form, const Checkpoint& checkpoint)
      : form_(form), checkpoint_(checkpoint) {}

  // Does nothing to a matrix that is stored as numbers.
  absl::Status Take(const std::string& name, const std::vector<int64_t>& shape) {
    constexpr std::string_view kWeight = "weight";
    RI_CHECK(name.ends_with(kWeight));
    const std::string stem = name.substr(0, name.size() - kWeight.size());
    const std::string codes_name = stem + std::string(form_.codes_end);
    const auto found = checkpoint_.tensors().find(codes_name);
    const bool is_shared = codes_name == name;  // with matrices of numbers
    if (found == checkpoint_.tensors().end()) return absl::OkStatus();
    if (is_shared && !HasScales(found->second.type)) return absl::OkStatus();
    if (!is_shared && checkpoint_.tensors().contains(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(checkpoint_.folder(), ": tensors \"", name, "\" and \"", codes_name,
                       "\" are the same matrix; one of them is needed"));
    }
    if (shape[1] % form_.group != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(checkpoint_.folder(), ": tensor \"", codes_name, "\" has ", shape[1],
                       " input features; ", form_.ToString(), " needs a multiple of that"));
    }
    ASSIGN_OR_RETURN(HostTensor tensor,
                     Find(codes_name, {{shape[0], shape[1] / 2}}, WeightType::kU8));
    ASSIGN_OR_RETURN(Scales scales,
                     FindScales(stem + std::string(form_.scales_end),
                                {{shape[0], shape[1] / form_.group}}, form_.scale_type));
    Scales global;
    if (!form_.global_end.empty()) {
      ASSIGN_OR_RETURN(
          global, FindScales(stem + std::string(form_.global_end), {{1}, {}}, WeightType::kF32));
    }
    tensor.type = WeightType::kBf16;
    tensor.shape = shape;
    tensor.coding = std::make_shared<Float4Numbers>(form_, std::move(scales), std::move(global));
    made.emplace_back(name, std::move(tensor));
    return absl::OkStatus();
  }

  std::vector<std::string> taken;
  std::vector<std::pair<std::string, HostTensor>> made;

 private:
  // The tensor must have one of `shapes`.
  absl::StatusOr<HostTensor> Find(const std::string& name,
                                  const std::vector<std::vector<int64_t>>& shapes,
                                  WeightType type) {
    const auto found = checkpoint_.tensors().find(name);
    const auto error = [&](const std::string& problem) {
      return absl::InvalidArgumentError(
          absl::StrCat(checkpoint_.folder(), ": tensor \"", name, "\" ", problem, "; needs ",
                       std::string(WeightTypeName(type)), " [", absl::StrJoin(shapes.front(), ", "),
                       "]: ", form_.ToString()));
    };
    if (found == checkpoint_.tensors().end()) return error("is missing");
    const HostTensor& tensor = found->second;
    if (tensor.type != type || std::ranges::find(shapes, tensor.shape) == shapes.end()) {
      return error(absl::StrCat("is ", std::string(WeightTypeName(tensor.type)), " [",
                                absl::StrJoin(tensor.shape, ", "), "]"));
    }
    RI_CHECK(tensor.coding == nullptr);  // only folders have such matrices
    taken.push_back(name);
    return tensor;
  }

  absl::StatusOr<Scales> FindScales(const std::string& name,
                                    const std::vector<std::vector<int64_t>>& shapes,
                                    WeightType type) {
    ASSIGN_OR_RETURN(const HostTensor tensor, Find(name, shapes, type));
    return Scales{name, tensor.stored};
  }

  const Float4Form form_;
  const Checkpoint& checkpoint_;
};

}  // namespace

absl::Status UnpackFloat4(const ModelConfig& config, Checkpoint& checkpoint) {
  if (!config.float4.has_value()) return absl::OkStatus();
  Unpacker unpacker(*config.float4, checkpoint);
  const ModelTable table(config);
  for (const auto& [name, stored] : table.stored()) {
    if (stored.may_be_coded()) RETURN_IF_ERROR(unpacker.Take(name, stored.shape));
  }
  checkpoint.Exchange(unpacker.taken, std::move(unpacker.made));
  return absl::OkStatus();
}

}  // namespace retroinfer
