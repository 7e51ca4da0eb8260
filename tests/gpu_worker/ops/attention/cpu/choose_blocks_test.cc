#include "gpu_worker/ops/attention/cpu/choose_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/ops/cpu/cpu_features.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"

namespace retroinfer::cpu {
namespace {

using namespace test_support;

struct Case {
  uint32_t head_dim = 64;
  uint32_t kv_heads = 2;
  uint32_t group = 2;
  int64_t first_unit = 0;
  int64_t num_units = 1;
  float threshold = 0.9f;
  DType dtype = DType::kF32;  // of the KV
  DType product = DType::kF32;

  int64_t first_token() const { return kSinkTokens + first_unit * kQueryUnit; }
  int64_t end() const { return first_token() + num_units * kQueryUnit; }
  int64_t heads() const { return int64_t{kv_heads} * group; }
};

class ChooseBlocksTest : public testing::Test {
 protected:
  ChooseBlocksTest() : backend_(AvailableBackends().front().create()), data_(*backend_) {}

  // Keys whose size changes from block to block, so that weights are uneven.
  std::vector<float> Keys(const Case& c) const {
    auto keys = RandomNormal(static_cast<size_t>(c.kv_heads * c.end()) * c.head_dim, 7);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto token = static_cast<int64_t>(i / c.head_dim) % c.end();
      keys[i] *= 0.5f + static_cast<float>(token / kChoiceBlock * 5 % 7);
    }
    return keys;
  }

  ChosenBlocks Choose(const Case& c, const LayerKvImage& kv, std::span<const float> queries) {
    const auto q =
        data_.UploadMatrix(queries, c.num_units * kQueryUnit, c.heads() * c.head_dim, DType::kF32);
    return ChooseBlocks(pool_,
                        {.queries = q.view,
                         .kv = kv.view(),
                         .first_token = c.first_token(),
                         .scale = kScale,
                         .choice = {.threshold = c.threshold},
                         .out = q.view},
                        ChooseTileGemm(c.product));
  }

  // The weight of each block, by doubles.
  static std::vector<double> Mass(const Case& c, const LayerKvImage& kv,
                                  std::span<const float> queries, int64_t unit, int64_t head) {
    const int64_t begin = c.first_token() + unit * kQueryUnit;
    std::vector<double> mass(
        static_cast<size_t>((begin + kQueryUnit + kChoiceBlock - 1) / kChoiceBlock));
    for (int64_t g = 0; g < kQueryUnit; g += kChoiceGroup) {
      std::vector<double> weights;
      double sum = 0;
      for (int64_t k = 0; k + kChoiceGroup <= begin + g + kChoiceGroup; k += kChoiceGroup) {
        double score = 0;
        for (int64_t s = 0; s < kChoiceGroup; ++s) {
          const int64_t row = unit * kQueryUnit + g + s;
          const float* query = queries.data() + (row * c.heads() + head) * c.head_dim;
          const float* key =
              kv.Key(static_cast<uint32_t>(head) / c.group, k + kChoiceGroup - 1 - s);
          for (uint32_t i = 0; i < c.head_dim; ++i) score += double{query[i]} * key[i];
        }
        weights.push_back(std::exp(score * kScale / kChoiceGroup));
        sum += weights.back();
      }
      for (size_t i = 0; i < weights.size(); ++i) {
        mass[i * kChoiceGroup / kChoiceBlock] += weights[i] / sum;
      }
    }
    return mass;
  }

  // The floor is there; what is chosen holds the threshold, and would not without the least of it.
  void CheckUnit(const Case& c, const ChosenBlocks& chosen, const std::vector<double>& mass,
                 int64_t unit, int64_t head) {
    const double tolerance = c.product == DType::kF32 ? 1e-4 : 0.03;
    const int64_t begin = c.first_token() + unit * kQueryUnit;
    double total = 0, held = 0, least = INFINITY, most_left_out = 0;
    for (size_t i = 0; i < mass.size(); ++i) {
      const auto block = static_cast<int64_t>(i);
      const bool is_floor = block == 0 || (block + 1) * kChoiceBlock > begin - kChoiceBlock;
      const bool is_chosen = chosen.Has(unit, head, block);
      EXPECT_TRUE(is_chosen || !is_floor) << "block " << block << " of unit " << unit;
      total += mass[i];
      if (is_chosen) held += mass[i];
      if (is_chosen && !is_floor) least = std::min(least, mass[i]);
      if (!is_chosen) most_left_out = std::max(most_left_out, mass[i]);
      num_left_out_ += is_chosen ? 0 : 1;
      num_chosen_ += is_chosen && !is_floor ? 1 : 0;
    }
    EXPECT_NEAR(total, kQueryUnit / kChoiceGroup, 1e-6);
    EXPECT_GE(held, c.threshold * total - tolerance) << "unit " << unit << ", head " << head;
    EXPECT_GE(least, most_left_out - tolerance);
    if (std::isfinite(least)) {
      EXPECT_LT(held - least, c.threshold * total + tolerance);
    }
  }

  void Check(const Case& c) {
    SCOPED_TRACE(testing::Message() << "head_dim " << c.head_dim << ", group " << c.group
                                    << ", units " << c.first_unit << " + " << c.num_units);
    const LayerKvImage kv(data_, Keys(c), Keys(c), c.kv_heads, c.head_dim, c.dtype);
    const auto q =
        RandomNormal(static_cast<size_t>(c.num_units * kQueryUnit * c.heads()) * c.head_dim, 3);
    const ChosenBlocks chosen = Choose(c, kv, q);
    for (int64_t unit = 0; unit < c.num_units; ++unit) {
      for (int64_t head = 0; head < c.heads(); ++head) {
        CheckUnit(c, chosen, Mass(c, kv, q, unit, head), unit, head);
      }
    }
  }

  static constexpr float kScale = 0.25f;
  std::unique_ptr<Backend> backend_;
  DeviceData data_;
  ThreadPool pool_{2};
  int num_left_out_ = 0;
  int num_chosen_ = 0;
};

TEST_F(ChooseBlocksTest, HoldsTheThresholdWithTheHeaviestBlocks) {
  for (const int64_t first : {0, 1, 2, 3, 7, 40}) Check({.first_unit = first, .num_units = 3});
  for (const uint32_t group : {1u, 3u, 7u, 8u, 9u, 16u}) {
    Check({.group = group, .first_unit = 12, .num_units = 2});
  }
  for (const float threshold : {0.3f, 0.99f}) Check({.first_unit = 33, .threshold = threshold});
  Check({.head_dim = 128, .kv_heads = 1, .first_unit = 21, .num_units = 2});
  EXPECT_GT(num_left_out_, 100);
  EXPECT_GT(num_chosen_, 100);
}

TEST_F(ChooseBlocksTest, TakesKeysOfEachType) {
  Check({.first_unit = 21, .num_units = 2, .dtype = DType::kBf16});
  if (HasAvx512Bf16()) {
    Check({.first_unit = 21, .num_units = 2, .dtype = DType::kBf16, .product = DType::kBf16});
  }
}

// What a unit chooses follows from its rows and the keys before its end alone.
TEST_F(ChooseBlocksTest, AChoiceDoesNotDependOnTheOtherUnitsOfTheCall) {
  for (const uint32_t group : {2u, 7u, 16u}) {
    const Case whole = {.group = group, .first_unit = 9, .num_units = 6};
    const LayerKvImage kv(data_, Keys(whole), Keys(whole), whole.kv_heads, 64, DType::kF32);
    const size_t row = static_cast<size_t>(whole.heads()) * 64;
    const auto q = RandomNormal(row * static_cast<size_t>(whole.num_units * kQueryUnit), 3);
    const ChosenBlocks together = Choose(whole, kv, q);
    for (int64_t unit = 0; unit < whole.num_units; ++unit) {
      Case one = whole;
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
  const Case c = {.first_unit = 21, .threshold = 0.1f};
  const LayerKvImage kv(data_, Keys(c), Keys(c), c.kv_heads, c.head_dim, c.dtype);
  auto q = RandomNormal(static_cast<size_t>(kQueryUnit * c.heads()) * c.head_dim, 3);
  q[5] = kNan;
  const ChosenBlocks chosen = Choose(c, kv, q);
  for (int64_t block = 0; block * kChoiceBlock < c.end(); ++block) {
    EXPECT_TRUE(chosen.Has(0, 0, block));
  }
}

}  // namespace
}  // namespace retroinfer::cpu
