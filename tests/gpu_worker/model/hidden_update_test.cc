#include "gpu_worker/model/hidden_update.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/status/status_macros.h"
#include "tests/gpu_worker/ops/collective/rank_matrices.h"
#include "tests/support/device_data.h"
#include "tests/support/rank_threads.h"

namespace retroinfer {
namespace {

using test_support::Backend;
using test_support::DeviceData;
using test_support::DrawnFor;
using test_support::RankThreads;
using test_support::SumOfRanks;

constexpr int64_t kRows = 3;
constexpr int64_t kCols = 24;

ModelConfig ConfigFor(int num_ranks) {
  ModelConfig config;
  config.rms_norm_epsilon = 1e-3f;
  config.norm_offset = 1;
  if (num_ranks > 1) config.shard.emplace();
  return config;
}

struct Case {
  int num_ranks;
  bool post_norm;
  bool next;
};

// The state of a rank, and what its layer computes: a part of what is added.
class RankState {
 public:
  RankState(Backend& backend, const std::vector<float>& part)
      : backend_(backend),
        data_(backend),
        hidden_(data_.Activations(DrawnFor(-1, kRows * kCols, DType::kF32), kRows, kCols)),
        scratch_(data_.Poisoned(kRows, kCols)),
        weights_(data_.UploadMatrix(DrawnFor(-2, 2 * kCols, DType::kF32), 2, kCols, DType::kF32)),
        part_(part) {}

  absl::Status Update(const Case& c) {
    const ModelConfig config = ConfigFor(c.num_ranks);
    const LayerSpec layer = {.post_norms = c.post_norm};
    HiddenUpdateArgs args = {.hidden = hidden_.view, .scratch = scratch_.view};
    if (c.post_norm) args.post_norm = weights_.view.Rows(0, 1);
    if (c.next) args.next = NextNorm();
    const HiddenUpdate update(*backend_.ops, config, layer, args);
    EXPECT_EQ(update.adds_at_once(), c.num_ranks == 1 && !c.post_norm);
    EXPECT_EQ(update.part().data, update.adds_at_once() ? hidden_.view.data : scratch_.view.data);
    Multiply(update);
    return update.Finish(*backend_.stream);
  }
  RmsNormArgs NextNorm() const {
    return {.in = hidden_.view,
            .weight = weights_.view.Rows(1, 1),
            .epsilon = 0.5f,
            .out = scratch_.view};
  }

  std::vector<float> Hidden() { return data_.Values(hidden_); }
  std::vector<float> Next() { return data_.Values(scratch_); }

  // The same by operations of one rank, of the sum of all parts.
  absl::Status UpdateAlone(const Case& c) {
    ModelOps& model = backend_.ops->model();
    const auto sum = data_.Activations(part_, kRows, kCols);
    if (c.post_norm) {
      RETURN_IF_ERROR(model.RmsNorm(*backend_.stream, {.in = sum.view,
                                                       .weight = weights_.view.Rows(0, 1),
                                                       .epsilon = 1e-3f,
                                                       .weight_offset = 1,
                                                       .out = hidden_.view,
                                                       .accumulate = true}));
    } else {
      RETURN_IF_ERROR(backend_.ops->collective().AllReduce(
          *backend_.stream, {.in = sum.view, .out = hidden_.view, .accumulate = true}));
    }
    return c.next ? model.RmsNorm(*backend_.stream, NextNorm()) : absl::OkStatus();
  }

 private:
  // What a product would do: writes the part, or adds it.
  void Multiply(const HiddenUpdate& update) {
    const auto product = data_.Activations(part_, kRows, kCols);
    auto* const out = reinterpret_cast<float*>(update.part().data);
    const auto* const from = reinterpret_cast<const float*>(product.view.data);
    for (int64_t i = 0; i < kRows * kCols; ++i) {
      out[i] = update.adds_at_once() ? out[i] + from[i] : from[i];
    }
  }

  Backend& backend_;
  DeviceData data_;
  const DeviceData::Matrix hidden_;
  const DeviceData::Matrix scratch_;
  const DeviceData::Matrix weights_;
  const std::vector<float> part_;
};

TEST(HiddenUpdateTest, GivesOnRanksWhatOneGives) {
  for (const Case& c :
       {Case{1, false, false}, Case{1, false, true}, Case{1, true, false}, Case{1, true, true},
        Case{2, false, false}, Case{2, false, true}, Case{2, true, false}, Case{2, true, true}}) {
    RankThreads alone(1);
    RankState want(alone.backend(0), SumOfRanks(c.num_ranks, kRows * kCols, DType::kF32, false));
    ASSERT_TRUE(want.UpdateAlone(c).ok());
    const std::vector<float> want_hidden = want.Hidden(), want_next = want.Next();
    RankThreads ranks(c.num_ranks);
    ranks.Run([&](int rank) {
      RankState state(ranks.backend(rank), DrawnFor(rank, kRows * kCols, DType::kF32));
      const absl::Status status = state.Update(c);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(state.Hidden(), want_hidden);
      if (c.next) {
        EXPECT_EQ(state.Next(), want_next);
      }
    });
  }
}

}  // namespace
}  // namespace retroinfer
