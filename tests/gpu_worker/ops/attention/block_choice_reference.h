// What a choice of blocks of keys has to be (ops/attention/block_choice.h), for tests of the
// backends' own parts that choose.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu_worker/ops/attention/block_choice.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"

namespace retroinfer::test_support {

// Units of queries that choose, from keys before their end.
struct ChoiceCase {
  uint32_t head_dim = 64;
  uint32_t kv_heads = 2;
  uint32_t group = 2;
  int64_t first_unit = 0;
  int64_t num_units = 1;
  float threshold = 0.9f;
  DType dtype = DType::kF32;  // of the KV

  int64_t first_token() const { return kSinkTokens + first_unit * kQueryUnit; }
  int64_t end() const { return first_token() + num_units * kQueryUnit; }
  int64_t heads() const { return int64_t{kv_heads} * group; }
};

constexpr float kChoiceScale = 0.25f;

// Keys whose size changes from block to block, so that weights are uneven.
inline std::vector<float> ChoiceKeys(const ChoiceCase& c) {
  auto keys = RandomNormal(static_cast<size_t>(c.kv_heads * c.end()) * c.head_dim, 7);
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto token = static_cast<int64_t>(i / c.head_dim) % c.end();
    keys[i] *= 0.5f + static_cast<float>(token / kChoiceBlock * 5 % 7);
  }
  return keys;
}

// The weight of each block, by doubles.
inline std::vector<double> BlockMass(const ChoiceCase& c, const LayerKvImage& kv,
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
        const float* key = kv.Key(static_cast<uint32_t>(head) / c.group, k + kChoiceGroup - 1 - s);
        for (uint32_t i = 0; i < c.head_dim; ++i) score += double{query[i]} * key[i];
      }
      weights.push_back(std::exp(score * kChoiceScale / kChoiceGroup));
      sum += weights.back();
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      mass[i * kChoiceGroup / kChoiceBlock] += weights[i] / sum;
    }
  }
  return mass;
}

// Blocks outside the floor of the choices that were checked.
struct ChoiceCounts {
  int chosen = 0;
  int left_out = 0;
};

// The floor is there; what is chosen holds the threshold, and would not without the least of it,
// each to `tolerance` of the estimated weight, which is 4. `is_chosen(block)` of a unit and head.
template <typename IsChosen>
void ExpectChoice(const ChoiceCase& c, const IsChosen& is_chosen, const std::vector<double>& mass,
                  int64_t unit, int64_t head, double tolerance, ChoiceCounts& counts) {
  const int64_t begin = c.first_token() + unit * kQueryUnit;
  double total = 0, held = 0, least = INFINITY, most_left_out = 0;
  for (size_t i = 0; i < mass.size(); ++i) {
    const auto block = static_cast<int64_t>(i);
    const bool is_floor = block == 0 || (block + 1) * kChoiceBlock > begin - kChoiceBlock;
    EXPECT_TRUE(is_chosen(block) || !is_floor) << "block " << block << " of unit " << unit;
    total += mass[i];
    if (is_chosen(block)) held += mass[i];
    if (is_chosen(block) && !is_floor) least = std::min(least, mass[i]);
    if (!is_chosen(block)) most_left_out = std::max(most_left_out, mass[i]);
    counts.left_out += is_chosen(block) ? 0 : 1;
    counts.chosen += is_chosen(block) && !is_floor ? 1 : 0;
  }
  EXPECT_NEAR(total, kQueryUnit / kChoiceGroup, 1e-6);
  EXPECT_GE(held, c.threshold * total - tolerance) << "unit " << unit << ", head " << head;
  EXPECT_GE(least, most_left_out - tolerance);
  if (std::isfinite(least)) {
    EXPECT_LT(held - least, c.threshold * total + tolerance);
  }
}

}  // namespace retroinfer::test_support
