// What a layer ends with, over ranks: the sum of what all add to the hidden state, then norms; as
// the one operation, and as those that it stands for.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tests/gpu_worker/ops/collective/rank_matrices.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer::test_support {

// Where norms stand.
enum class LayerEndForm {
  kNormBehind,   // hidden += sum, and the norm of that for what follows
  kNormBetween,  // hidden += norm of the sum
  kBoth,         // and the norm of that
};
inline constexpr LayerEndForm kLayerEndForms[] = {LayerEndForm::kNormBehind,
                                                  LayerEndForm::kNormBetween, LayerEndForm::kBoth};

// Threads: one, of a rank.
class LayerEnd {
 public:
  // Draws what rank `rank` adds, and a hidden state and weights that all ranks have.
  LayerEnd(Backend& backend, int rank, int64_t rows, int64_t cols)
      : backend_(backend),
        data_(backend),
        part_(data_.Activations(Drawn(rank, rows * cols), rows, cols)),
        hidden_(data_.Activations(Drawn(-1, rows * cols), rows, cols)),
        weights_(data_.UploadMatrix(Drawn(-2, 2 * cols), 2, cols, DType::kBf16)) {}

  // As one operation, or as those behind each other.
  absl::Status Run(LayerEndForm form, bool as_one) {
    const NormOfSumArgs args = Args(form);
    if (as_one) return backend_.ops->collective().NormOfSum(*backend_.stream, args);
    RETURN_IF_ERROR(backend_.ops->collective().AllReduce(*backend_.stream, args.sum));
    for (const RmsNormArgs& norm : args.norms) {
      RETURN_IF_ERROR(backend_.ops->model().RmsNorm(*backend_.stream, norm));
    }
    return absl::OkStatus();
  }

  // The hidden state and what follows it.
  std::array<std::vector<float>, 2> Results() {
    return {data_.Values(hidden_), data_.Values(part_)};
  }

 private:
  static std::vector<float> Drawn(int rank, int64_t elements) {
    return DrawnFor(rank, elements, DType::kBf16);
  }
  RmsNormArgs Norm(int64_t weight, const MatrixView& in, const MatrixView& out) const {
    return {.in = in,
            .weight = weights_.view.Rows(weight, 1),
            .epsilon = 1e-5f,
            .scale = weight == 1 ? 0.75f : 1,
            .weight_offset = 1,
            .out = out};
  }
  NormOfSumArgs Args(LayerEndForm form) {
    const MatrixView& part = part_.view;
    const MatrixView& hidden = hidden_.view;
    if (form == LayerEndForm::kNormBehind) {
      norms_ = {Norm(0, hidden, part)};
      return {.sum = {.in = part, .out = hidden, .accumulate = true}, .norms = norms_};
    }
    norms_ = {Norm(0, part, hidden)};
    norms_.front().accumulate = true;
    if (form == LayerEndForm::kBoth) norms_.push_back(Norm(1, hidden, part));
    return {.sum = {.in = part, .out = part}, .norms = norms_};
  }

  Backend& backend_;
  DeviceData data_;
  const DeviceData::Matrix part_;
  const DeviceData::Matrix hidden_;
  const DeviceData::Matrix weights_;
  std::vector<RmsNormArgs> norms_;
};

// Expects both ways of each form to give the same bits, and another hidden state.
inline void ExpectTheSameAsOne(Backend& backend, int rank, int64_t rows, int64_t cols) {
  for (const LayerEndForm form : kLayerEndForms) {
    LayerEnd apart(backend, rank, rows, cols);
    LayerEnd as_one(backend, rank, rows, cols);
    const auto before = as_one.Results()[0];
    const absl::Status one = as_one.Run(form, true);
    const absl::Status other = apart.Run(form, false);
    ASSERT_TRUE(one.ok() && other.ok()) << one << other;
    const auto got = as_one.Results();
    EXPECT_TRUE(got == apart.Results())
        << rows << " x " << cols << ", form " << static_cast<int>(form);
    EXPECT_TRUE(got[0] != before);
  }
}

}  // namespace retroinfer::test_support
