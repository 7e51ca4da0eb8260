#include "gpu_worker/ops/attention/cpu/choose_blocks.h"

#include <gtest/gtest.h>

#include <vector>

#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/ops/cpu/cpu_features.h"
#include "tests/gpu_worker/ops/attention/block_choice_reference.h"

namespace retroinfer::cpu {
namespace {

using namespace test_support;

class ChooseBlocksTest : public testing::Test {
 protected:
  ChooseBlocksTest() : backend_(AvailableBackends().front().create()), data_(*backend_) {}

  ChosenBlocks Choose(const ChoiceCase& c, const LayerKvImage& kv, std::span<const float> queries,
                      DType product = DType::kF32) {
    const auto q =
        data_.UploadMatrix(queries, c.num_units * kQueryUnit, c.heads() * c.head_dim, DType::kF32);
    return ChooseBlocks(pool_,
                        {.queries = q.view,
                         .kv = kv.view(),
                         .first_token = c.first_token(),
                         .scale = kChoiceScale,
                         .choice = {.threshold = c.threshold},
                         .out = q.view},
                        ChooseTileGemm(product));
  }

  void Check(const ChoiceCase& c, DType product = DType::kF32) {
    SCOPED_TRACE(testing::Message() << "head_dim " << c.head_dim << ", group " << c.group
                                    << ", units " << c.first_unit << " + " << c.num_units);
    const LayerKvImage kv(data_, ChoiceKeys(c), ChoiceKeys(c), c.kv_heads, c.head_dim, c.dtype);
    const auto q =
        RandomNormal(static_cast<size_t>(c.num_units * kQueryUnit * c.heads()) * c.head_dim, 3);
    const ChosenBlocks chosen = Choose(c, kv, q, product);
    for (int64_t unit = 0; unit < c.num_units; ++unit) {
      for (int64_t head = 0; head < c.heads(); ++head) {
        ExpectChoice(
            c, [&](int64_t block) { return chosen.Has(unit, head, block); },
            BlockMass(c, kv, q, unit, head), unit, head, product == DType::kF32 ? 1e-4 : 0.03,
            counts_);
      }
    }
  }

  std::unique_ptr<Backend> backend_;
  DeviceData data_;
  ThreadPool pool_{2};
  ChoiceCounts counts_;
};

TEST_F(ChooseBlocksTest, HoldsTheThresholdWithTheHeaviestBlocks) {
  for (const int64_t first : {0, 1, 2, 3, 7, 40}) Check({.first_unit = first, .num_units = 3});
  for (const uint32_t group : {1u, 3u, 7u, 8u, 9u, 16u}) {
    Check({.group = group, .first_unit = 12, .num_units = 2});
  }
  for (const float threshold : {0.3f, 0.99f}) Check({.first_unit = 33, .threshold = threshold});
  Check({.head_dim = 128, .kv_heads = 1, .first_unit = 21, .num_units = 2});
  EXPECT_GT(counts_.left_out, 100);
  EXPECT_GT(counts_.chosen, 100);
}

TEST_F(ChooseBlocksTest, TakesKeysOfEachType) {
  Check({.first_unit = 21, .num_units = 2, .dtype = DType::kBf16});
  if (HasAvx512Bf16()) {
    Check({.first_unit = 21, .num_units = 2, .dtype = DType::kBf16}, DType::kBf16);
  }
}

// What a unit chooses follows from its rows and the keys before its end alone.
TEST_F(ChooseBlocksTest, AChoiceDoesNotDependOnTheOtherUnitsOfTheCall) {
  for (const uint32_t group : {2u, 7u, 16u}) {
    const ChoiceCase whole = {.group = group, .first_unit = 9, .num_units = 6};
    const LayerKvImage kv(data_, ChoiceKeys(whole), ChoiceKeys(whole), whole.kv_heads, 64,
                          DType::kF32);
    const size_t row = static_cast<size_t>(whole.heads()) * 64;
    const auto q = RandomNormal(row * static_cast<size_t>(whole.num_units * kQueryUnit), 3);
    const ChosenBlocks together = Choose(whole, kv, q);
    for (int64_t unit = 0; unit < whole.num_units; ++unit) {
      ChoiceCase one = whole;
      one.first_unit += unit;
      one.num_units = 1;
      const auto part = std::span(q).subspan(static_cast<size_t>(unit * kQueryUnit) * row,
                                             static_cast<size_t>(kQueryUnit) * row);
      const ChosenBlocks alone = Choose(one, kv, part);
      for (int64_t head = 0; head < whole.heads(); ++head) {
        for (int64_t block = 0; block * kChoiceBlock < one.end(); ++block) {
          EXPECT_EQ(alone.Has(0, head, block), together.Has(unit, head, block))
              << "group " << group << ", unit " << unit << ", block " << block;
        }
      }
    }
  }
}

TEST_F(ChooseBlocksTest, LeavesNothingOutWhereScoresAreNoNumbers) {
  const ChoiceCase c = {.first_unit = 21, .threshold = 0.1f};
  const LayerKvImage kv(data_, ChoiceKeys(c), ChoiceKeys(c), c.kv_heads, c.head_dim, c.dtype);
  auto q = RandomNormal(static_cast<size_t>(kQueryUnit * c.heads()) * c.head_dim, 3);
  q[5] = kNan;
  const ChosenBlocks chosen = Choose(c, kv, q);
  for (int64_t block = 0; block * kChoiceBlock < c.end(); ++block) {
    EXPECT_TRUE(chosen.Has(0, 0, block));
  }
}

}  // namespace
}  // namespace retroinfer::cpu
