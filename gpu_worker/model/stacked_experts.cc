#include "gpu_worker/model/stacked_experts.h"

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/e2m1.h"
#include "gpu_worker/model/small_floats.h"

namespace retroinfer {
namespace {

constexpr int64_t kGroup = 32;  // codes of an exponent
constexpr size_t kBf16Bytes = 2;

// Each `stride`th of the rows that are stored, from row `first` on.
struct RowChoice {
  int64_t first = 0;
  int64_t stride = 1;
};

// Rows of codes as rows of bf16. `exponents`: of all stored rows.
class Mxfp4Rows final : public TensorCoding {
 public:
  Mxfp4Rows(int64_t cols, RowChoice choice, std::span<const std::byte> exponents)
      : cols_(cols), choice_(choice), exponents_(exponents) {}

  Extent StoredExtent(size_t begin, size_t size) const override {
    const size_t row_bytes = static_cast<size_t>(cols_) / 2;
    if (size == 0) return {};
    const int64_t last = RowAt(begin + size - 1);
    return {StoredRow(RowAt(begin)) * row_bytes,
            (StoredRow(last) - StoredRow(RowAt(begin)) + 1) * row_bytes};
  }

  void Decode(std::span<const std::byte> stored, size_t begin,
              std::span<std::byte> out) const override {
    RI_CHECK(begin % kBf16Bytes == 0 && out.size() % kBf16Bytes == 0);
    const size_t first_row = out.empty() ? 0 : StoredRow(RowAt(begin));
    int64_t at = static_cast<int64_t>(begin / kBf16Bytes);
    const int64_t end = at + static_cast<int64_t>(out.size() / kBf16Bytes);
    std::byte* target = out.data();
    while (at < end) {  // one group, or what of it is wanted
      const size_t row = StoredRow(at / cols_);
      const int64_t col = at % cols_;
      const int64_t count = std::min(end - at, kGroup - col % kGroup);
      const std::array<uint16_t, 16> numbers =
          NumbersOf(exponents_[(row * static_cast<size_t>(cols_) + static_cast<size_t>(col)) /
                               static_cast<size_t>(kGroup)]);
      const std::byte* const codes =
          stored.data() + (row - first_row) * static_cast<size_t>(cols_) / 2;
      for (int64_t i = col; i < col + count; ++i, target += kBf16Bytes) {
        const auto pair = static_cast<uint8_t>(codes[i / 2]);
        std::memcpy(target, &numbers[i % 2 == 0 ? pair & 15 : pair >> 4], kBf16Bytes);
      }
      at += count;
    }
  }

 private:
  int64_t RowAt(size_t byte) const { return static_cast<int64_t>(byte / kBf16Bytes) / cols_; }
  size_t StoredRow(int64_t row) const {
    return static_cast<size_t>(choice_.first + row * choice_.stride);
  }
  // What each code is with an exponent; 255 is no number, and is refused as one.
  static std::array<uint16_t, 16> NumbersOf(std::byte exponent) {
    const float power = FromE8m0(static_cast<uint8_t>(exponent));
    std::array<uint16_t, 16> numbers{};
    for (size_t code = 0; code < numbers.size(); ++code) {
      numbers[code] = ToBf16(kE2m1[code] * power);
    }
    return numbers;
  }

  const int64_t cols_;
  const RowChoice choice_;
  const std::span<const std::byte> exponents_;
};

// Each second number of a vector.
class EachSecond final : public TensorCoding {
 public:
  EachSecond(size_t element_bytes, size_t first) : element_(element_bytes), first_(first) {}

  Extent StoredExtent(size_t begin, size_t size) const override {
    if (size == 0) return {};
    const size_t from = begin / element_;
    const size_t to = (begin + size - 1) / element_;
    return {(2 * from + first_) * element_, (2 * (to - from) + 1) * element_};
  }
  void Decode(std::span<const std::byte> stored, size_t begin,
              std::span<std::byte> out) const override {
    RI_CHECK(begin % element_ == 0 && out.size() % element_ == 0);
    for (size_t i = 0; i < out.size(); i += element_) {
      std::memcpy(out.data() + i, stored.data() + 2 * i, element_);
    }
  }

 private:
  const size_t element_;
  const size_t first_;
};

// What the stacked tensors of one layer become.
class LayerUnstacker {
 public:
  LayerUnstacker(const ModelConfig& config, const Checkpoint& checkpoint, uint32_t layer)
      : checkpoint_(checkpoint),
        experts_(config.experts.count),
        prefix_(absl::StrCat(std::string(config.names->layer_prefix), layer, ".mlp.experts.")) {}

  // `parts`: what rows are of in turn, each of `rows` rows.
  absl::Status Take(const std::string& stacked, const std::vector<std::string>& parts, int64_t rows,
                    int64_t cols) {
    RETURN_IF_ERROR(TakeMatrices(stacked, parts, rows, cols));
    return TakeBiases(stacked, parts, rows);
  }

  std::vector<std::string> taken;
  std::vector<std::pair<std::string, HostTensor>> made;

 private:
  absl::StatusOr<HostTensor> Find(const std::string& name, std::vector<int64_t> shape,
                                  bool is_codes) {
    ASSIGN_OR_RETURN(HostTensor tensor, checkpoint_.Find(prefix_ + name, shape));
    if ((tensor.type == WeightType::kU8) != is_codes || tensor.coding != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          checkpoint_.folder(), ": tensor \"", prefix_, name, "\" is ",
          std::string(WeightTypeName(tensor.type)), "; needs ", is_codes ? "U8" : "numbers"));
    }
    taken.push_back(prefix_ + name);
    return tensor;
  }

  // The share of `expert`, still as it is stored.
  HostTensor ShareOf(const HostTensor& stacked, int64_t expert, std::vector<int64_t> shape) const {
    const size_t bytes = stacked.stored.size() / static_cast<size_t>(experts_);
    const size_t begin = static_cast<size_t>(expert) * bytes;
    HostTensor share = stacked;
    share.shape = std::move(shape);
    share.stored = stacked.stored.subspan(begin, bytes);
    share.file_offset += begin;
    return share;
  }
  void Make(int64_t expert, const std::string& part, const char* end, HostTensor tensor) {
    made.emplace_back(absl::StrCat(prefix_, expert, ".", part, end), std::move(tensor));
  }

  absl::Status TakeMatrices(const std::string& stacked, const std::vector<std::string>& parts,
                            int64_t rows, int64_t cols) {
    if (checkpoint_.tensors().contains(prefix_ + stacked)) {
      return absl::UnimplementedError(
          absl::StrCat(checkpoint_.folder(), ": tensor \"", prefix_, stacked,
                       "\": stacked experts are supported in MXFP4 alone (", stacked, "_blocks)"));
    }
    const int64_t all_rows = rows * std::ssize(parts);
    if (cols % kGroup != 0) {
      return absl::UnimplementedError(absl::StrCat(checkpoint_.folder(), ": ", cols,
                                                   " input features of experts; MXFP4 needs a "
                                                   "multiple of ",
                                                   kGroup));
    }
    ASSIGN_OR_RETURN(
        const HostTensor codes,
        Find(stacked + "_blocks", {experts_, all_rows, cols / kGroup, kGroup / 2}, true));
    ASSIGN_OR_RETURN(const HostTensor exponents,
                     Find(stacked + "_scales", {experts_, all_rows, cols / kGroup}, true));
    for (int64_t expert = 0; expert < experts_; ++expert) {
      const HostTensor of_expert = ShareOf(exponents, expert, {});
      for (size_t i = 0; i < parts.size(); ++i) {
        HostTensor tensor = ShareOf(codes, expert, {rows, cols});
        tensor.type = WeightType::kBf16;
        tensor.coding = std::make_shared<Mxfp4Rows>(
            cols, RowChoice{static_cast<int64_t>(i), std::ssize(parts)}, of_expert.stored);
        Make(expert, parts[i], ".weight", std::move(tensor));
      }
    }
    return absl::OkStatus();
  }

  absl::Status TakeBiases(const std::string& stacked, const std::vector<std::string>& parts,
                          int64_t rows) {
    ASSIGN_OR_RETURN(const HostTensor biases,
                     Find(stacked + "_bias", {experts_, rows * std::ssize(parts)}, false));
    for (int64_t expert = 0; expert < experts_; ++expert) {
      for (size_t i = 0; i < parts.size(); ++i) {
        HostTensor tensor = ShareOf(biases, expert, {rows});
        if (parts.size() == 2) {
          tensor.coding = std::make_shared<EachSecond>(WeightTypeBytes(tensor.type), i);
        }
        Make(expert, parts[i], ".bias", std::move(tensor));
      }
    }
    return absl::OkStatus();
  }

  const Checkpoint& checkpoint_;
  const int64_t experts_;
  const std::string prefix_;
};

}  // namespace

absl::Status UnstackExperts(const ModelConfig& config, Checkpoint& checkpoint) {
  if (config.family != ModelFamily::kGptOss) return absl::OkStatus();
  std::vector<LayerUnstacker> layers;
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    LayerUnstacker& unstacker = layers.emplace_back(config, checkpoint, layer);
    RETURN_IF_ERROR(unstacker.Take("gate_up_proj", {"gate_proj", "up_proj"},
                                   config.intermediate_size, config.hidden_size));
    RETURN_IF_ERROR(
        unstacker.Take("down_proj", {"down_proj"}, config.hidden_size, config.intermediate_size));
  }
  for (LayerUnstacker& layer : layers) checkpoint.Exchange(layer.taken, std::move(layer.made));
  return absl::OkStatus();
}

std::string_view NoteOfUnstacking(const ModelConfig& config) {
  if (config.family != ModelFamily::kGptOss) return {};
  return "experts in MXFP4 become bf16, four times their size: weights of 4 bits have scales of "
         "another kind here";
}

}  // namespace retroinfer
