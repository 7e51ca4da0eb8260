// The parts of the CUDA backend's sparse prefill: what its kernels choose, beside a choice by
// doubles, and attention over blocks that are given, beside the plain kernel's over no others.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/ops/attention/cuda/prefill_attention.h"
#include "tests/gpu_worker/ops/attention/block_choice_reference.h"
#include "tests/support/backends.h"

namespace retroinfer::cuda {
namespace {

using namespace test_support;

class CudaChooseBlocksTest : public testing::TestWithParam<PrefillKernel> {
 protected:
  void SetUp() override {
    for (const BackendParam& param : AvailableBackends()) {
      if (param.name == "Cuda") backend_ = param.create();
    }
    if (backend_ == nullptr) GTEST_SKIP() << "no GPU";
    auto context = PrefillAttentionContext::Create(static_cast<CudaDevice&>(*backend_->device));
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
    data_ = std::make_unique<DeviceData>(*backend_);
    if (GetParam() > Fastest({.dtype = DType::kBf16})) GTEST_SKIP() << "not on this device";
  }

  CudaStream& stream() { return static_cast<CudaStream&>(*backend_->stream); }

  PrefillKernel Fastest(const ChoiceCase& c) {
    const LayerKvImage kv(*data_, ChoiceKeys(c), ChoiceKeys(c), c.kv_heads, c.head_dim, c.dtype);
    const auto rows = data_->Poisoned(kQueryUnit, c.heads() * c.head_dim);
    return context_->Choose({.queries = rows.view, .kv = kv.view(), .out = rows.view});
  }

  // A call's rows and its working memory.
  struct Units {
    Units(CudaChooseBlocksTest& test, const ChoiceCase& c, const LayerKvImage& kv,
          std::span<const float> queries)
        : layout(c.num_units, c.heads(), ChoiceBlocksOf(c.end())),
          q(test.data_->Activations(queries, c.num_units * kQueryUnit, c.heads() * c.head_dim)),
          out(test.data_->Poisoned(c.num_units * kQueryUnit, c.heads() * c.head_dim)),
          scratch(test.data_->Upload(std::vector<std::byte>(layout.end, std::byte{0xff}))),
          args({.queries = q.view,
                .kv = kv.view(),
                .first_token = c.first_token(),
                .scale = kChoiceScale,
                .choice = {.threshold = c.threshold},
                .out = out.view,
                .scratch = scratch.bytes()}) {}

    ChoiceLayout layout;
    DeviceData::Matrix q, out;
    DeviceBuffer scratch;
    PrefillAttentionArgs args;
  };

  // Words of pairs, as ChosenBlocks has them.
  std::vector<uint32_t> Choose(const ChoiceCase& c, const LayerKvImage& kv,
                               std::span<const float> queries) {
    const Units units(*this, c, kv, queries);
    const absl::Status status = context_->ChooseBlocks(GetParam(), stream(), units.args);
    EXPECT_TRUE(status.ok()) << status;
    const auto all = data_->Download<uint32_t>(units.scratch);
    CheckCounts(c, units.layout, all);
    return {all.begin() + static_cast<int64_t>(units.layout.words / 4),
            all.begin() + static_cast<int64_t>(units.layout.counts / 4)};
  }

  // Counts are those of the words' bits; the order has each tile once, longer ones first.
  static void CheckCounts(const ChoiceCase& c, const ChoiceLayout& layout,
                          const std::vector<uint32_t>& scratch) {
    const auto pairs = static_cast<size_t>(c.num_units * c.heads());
    const uint32_t* const counts = scratch.data() + layout.counts / 4;
    for (size_t pair = 0; pair < pairs; ++pair) {
      uint32_t bits = 0;
      for (int64_t word = 0; word < layout.words_of_pair; ++word) {
        bits += static_cast<uint32_t>(std::popcount(
            scratch[layout.words / 4 + pair * static_cast<size_t>(layout.words_of_pair) +
                    static_cast<size_t>(word)]));
      }
      EXPECT_EQ(counts[pair], bits) << "pair " << pair;
    }
    const int64_t heads = c.heads(), tiles = (c.num_units + 1) / 2;
    std::vector<int> seen(static_cast<size_t>(tiles * heads));
    int64_t last_length = std::numeric_limits<int64_t>::max();
    for (int64_t i = 0; i < tiles * heads; ++i) {
      const int64_t place = scratch[layout.order / 4 + static_cast<size_t>(i)];
      ASSERT_LT(place, tiles * heads);
      ++seen[static_cast<size_t>(place)];
      const int64_t head = place % heads, unit = place / heads * 2;
      int64_t length = counts[unit * heads + head];
      if (unit + 1 < c.num_units) {
        length = std::max<int64_t>(length, counts[(unit + 1) * heads + head]);
      }
      EXPECT_LE(length, last_length);
      last_length = length;
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), tiles * heads);
  }

  static bool Has(const ChoiceCase& c, const std::vector<uint32_t>& words, int64_t unit,
                  int64_t head, int64_t block) {
    const int64_t of_pair = (ChoiceBlocksOf(c.end()) + 31) / 32;
    const int64_t word = (unit * c.heads() + head) * of_pair + block / 32;
    return (words[static_cast<size_t>(word)] >> block % 32 & 1) != 0;
  }
  std::vector<float> Queries(const ChoiceCase& c, uint64_t seed = 3) {
    return data_->Rounded(
        RandomNormal(static_cast<size_t>(c.num_units * kQueryUnit * c.heads()) * c.head_dim, seed));
  }

  void Check(ChoiceCase c) {
    c.dtype = DType::kBf16;
    SCOPED_TRACE(testing::Message() << "head_dim " << c.head_dim << ", group " << c.group
                                    << ", units " << c.first_unit << " + " << c.num_units);
    const LayerKvImage kv(*data_, ChoiceKeys(c), ChoiceKeys(c), c.kv_heads, c.head_dim, c.dtype);
    const auto q = Queries(c);
    const std::vector<uint32_t> words = Choose(c, kv, q);
    for (int64_t unit = 0; unit < c.num_units; ++unit) {
      for (int64_t head = 0; head < c.heads(); ++head) {
        // Operands are the same bits, sums are of f32: a block may change places with one that is
        // as near as this.
        constexpr double kTolerance = 1e-3;
        ExpectChoice(
            c, [&](int64_t block) { return Has(c, words, unit, head, block); },
            BlockMass(c, kv, q, unit, head), unit, head, kTolerance, counts_);
      }
    }
  }

  // Chosen blocks of every pair: the first, the last, and others by chance.
  std::vector<uint32_t> RandomWords(const ChoiceCase& c, double share) {
    std::mt19937 random(5);
    std::bernoulli_distribution is_chosen(share);
    const int64_t blocks = ChoiceBlocksOf(c.end()), of_pair = (blocks + 31) / 32;
    std::vector<uint32_t> words(static_cast<size_t>(c.num_units * c.heads() * of_pair));
    for (int64_t pair = 0; pair < c.num_units * c.heads(); ++pair) {
      const int64_t begin = c.first_token() + pair / c.heads() * kQueryUnit;
      const int64_t last = (begin + kQueryUnit - 1) / kChoiceBlock;
      for (int64_t block = 0; block <= last; ++block) {
        const bool is_own = block == 0 || block >= begin / kChoiceBlock;
        if (!is_own && !is_chosen(random)) continue;
        words[static_cast<size_t>(pair * of_pair + block / 32)] |= uint32_t{1} << block % 32;
      }
    }
    return words;
  }

  std::vector<float> Attend(PrefillKernel kernel, const ChoiceCase& c, const LayerKvImage& kv,
                            std::span<const float> queries, const std::vector<uint32_t>& words) {
    const Units units(*this, c, kv, queries);
    std::vector<int32_t> order;
    for (int64_t tile = (c.num_units + 1) / 2; tile-- > 0;) {
      for (int64_t head = 0; head < c.heads(); ++head) {
        order.push_back(static_cast<int32_t>(tile * c.heads() + head));
      }
    }
    Put(units, units.layout.words, std::as_bytes(std::span(words)));
    Put(units, units.layout.order, std::as_bytes(std::span(order)));
    const absl::Status status = context_->RunChosen(kernel, stream(), units.args);
    EXPECT_TRUE(status.ok()) << status;
    return data_->Values(units.out);
  }
  void Put(const Units& units, size_t at, std::span<const std::byte> bytes) {
    EXPECT_TRUE(
        backend_->device->Upload(stream(), bytes, units.scratch.bytes().subspan(at, bytes.size()))
            .ok());
    EXPECT_TRUE(stream().Synchronize().ok());
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<PrefillAttentionContext> context_;
  std::unique_ptr<DeviceData> data_;
  ChoiceCounts counts_;
};

TEST_P(CudaChooseBlocksTest, HoldsTheThresholdWithTheHeaviestBlocks) {
  for (const int64_t first : {0, 1, 2, 3, 7, 40}) Check({.first_unit = first, .num_units = 3});
  for (const uint32_t group : {1u, 3u, 7u, 8u, 9u, 16u, 17u}) {
    Check({.group = group, .first_unit = 12, .num_units = 2});
  }
  for (const float threshold : {0.3f, 0.99f}) Check({.first_unit = 33, .threshold = threshold});
  Check({.head_dim = 128, .kv_heads = 1, .first_unit = 21, .num_units = 2});
  Check({.head_dim = 128, .kv_heads = 3, .group = 4, .first_unit = 60, .num_units = 19});
  Check({.head_dim = 256, .kv_heads = 1, .group = 2, .first_unit = 21, .num_units = 2});
  EXPECT_GT(counts_.left_out, 100);
  EXPECT_GT(counts_.chosen, 100);
}

// What a unit chooses follows from its rows and the keys before its end alone.
TEST_P(CudaChooseBlocksTest, AChoiceDoesNotDependOnTheOtherUnitsOfTheCall) {
  for (const uint32_t group : {1u, 4u, 7u, 16u}) {
    const ChoiceCase whole = {
        .group = group, .first_unit = 9, .num_units = 6, .dtype = DType::kBf16};
    const LayerKvImage kv(*data_, ChoiceKeys(whole), ChoiceKeys(whole), whole.kv_heads, 64,
                          whole.dtype);
    const size_t row = static_cast<size_t>(whole.heads()) * 64;
    const auto q = Queries(whole);
    const std::vector<uint32_t> together = Choose(whole, kv, q);
    for (int64_t unit = 0; unit < whole.num_units; ++unit) {
      ChoiceCase one = whole;
      one.first_unit += unit;
      one.num_units = 1;
      const auto part = std::span(q).subspan(static_cast<size_t>(unit * kQueryUnit) * row,
                                             static_cast<size_t>(kQueryUnit) * row);
      const std::vector<uint32_t> alone = Choose(one, kv, part);
      for (int64_t head = 0; head < whole.heads(); ++head) {
        for (int64_t block = 0; block * kChoiceBlock < one.end(); ++block) {
          EXPECT_EQ(Has(one, alone, 0, head, block), Has(whole, together, unit, head, block))
              << "group " << group << ", unit " << unit << ", block " << block;
        }
      }
    }
  }
}

TEST_P(CudaChooseBlocksTest, OfEqualBlocksTheFirstComesFirst) {
  const ChoiceCase c = {.first_unit = 80, .threshold = 0.5f, .dtype = DType::kBf16};
  std::vector<float> keys(static_cast<size_t>(c.kv_heads * c.end()) * c.head_dim, 0.0f);
  const LayerKvImage kv(*data_, keys, keys, c.kv_heads, c.head_dim, c.dtype);
  const std::vector<uint32_t> words = Choose(c, kv, Queries(c));
  // The floor has the first block and the last two; half of the weight is wanted.
  const int64_t blocks = ChoiceBlocksOf(c.end());
  ASSERT_EQ(blocks, 41);
  int64_t num_chosen = 0, last_but_floor = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    if (!Has(c, words, 0, 1, block)) continue;
    ++num_chosen;
    if (block < blocks - 2) last_but_floor = block;
  }
  EXPECT_NEAR(static_cast<double>(num_chosen), 20.5, 1.0);
  EXPECT_EQ(num_chosen, last_but_floor + 1 + 2);
}

TEST_P(CudaChooseBlocksTest, LeavesNothingOutWhereScoresAreNoNumbers) {
  const ChoiceCase c = {.first_unit = 21, .threshold = 0.1f, .dtype = DType::kBf16};
  const LayerKvImage kv(*data_, ChoiceKeys(c), ChoiceKeys(c), c.kv_heads, c.head_dim, c.dtype);
  auto q = Queries(c);
  q[5] = kNan;
  const std::vector<uint32_t> words = Choose(c, kv, q);
  for (int64_t block = 0; block * kChoiceBlock < c.end(); ++block) {
    EXPECT_TRUE(Has(c, words, 0, 0, block));
  }
}

TEST_P(CudaChooseBlocksTest, AttendsToTheChosenBlocksAsThePlainKernelDoes) {
  for (const double share : {0.0, 0.1, 0.5, 1.0}) {
    for (const ChoiceCase& c : {ChoiceCase{128, 2, 4, 40, 5}, ChoiceCase{128, 1, 7, 67, 2},
                                ChoiceCase{64, 2, 3, 33, 1}, ChoiceCase{64, 1, 16, 150, 4},
                                ChoiceCase{256, 1, 2, 35, 3}, ChoiceCase{128, 1, 1, 0, 3}}) {
      ChoiceCase bf16 = c;
      bf16.dtype = DType::kBf16;
      if (GetParam() > Fastest(bf16)) continue;
      const LayerKvImage kv(*data_, ChoiceKeys(bf16), ChoiceKeys(bf16), c.kv_heads, c.head_dim,
                            bf16.dtype);
      const auto q = Queries(bf16);
      const auto words = RandomWords(bf16, share);
      const auto want = Attend(PrefillKernel::kPlain, bf16, kv, q, words);
      const auto got = Attend(GetParam(), bf16, kv, q, words);
      EXPECT_LE(RelativeError(got, std::vector<double>(want.begin(), want.end())), 1.0 / 128)
          << "head_dim " << c.head_dim << ", group " << c.group << ", share " << share;
    }
  }
}

// With all blocks chosen a kernel gives what it gives without a choice, to the bit.
TEST_P(CudaChooseBlocksTest, AllBlocksChosenAreExact) {
  for (const uint32_t head_dim : {64u, 128u}) {
    const ChoiceCase c = {
        .head_dim = head_dim, .group = 4, .first_unit = 40, .num_units = 5, .dtype = DType::kBf16};
    const LayerKvImage kv(*data_, ChoiceKeys(c), ChoiceKeys(c), c.kv_heads, head_dim, c.dtype);
    const auto q = Queries(c);
    const auto chosen = Attend(GetParam(), c, kv, q, RandomWords(c, 1));
    const Units units(*this, c, kv, q);
    ASSERT_TRUE(context_->Run(GetParam(), stream(), units.args).ok());
    EXPECT_EQ(chosen, data_->Values(units.out));
  }
}

// Units are worked on as many at a time as the scratch has room for.
TEST_P(CudaChooseBlocksTest, ASmallScratchChangesNoBit) {
  if (GetParam() != PrefillKernel::kHopper) GTEST_SKIP() << "the fastest kernel alone is called";
  const ChoiceCase c = {
      .head_dim = 128, .group = 4, .first_unit = 40, .num_units = 7, .dtype = DType::kBf16};
  const LayerKvImage kv(*data_, ChoiceKeys(c), ChoiceKeys(c), c.kv_heads, c.head_dim, c.dtype);
  const auto q = Queries(c);
  const size_t of_unit = ChoiceBytesOfUnit(c.heads(), ChoiceBlocksOf(c.end()));
  const auto run = [&](size_t scratch_bytes, std::vector<float>& out) {
    Units units(*this, c, kv, q);
    units.args.scratch = units.args.scratch.first(scratch_bytes);
    const absl::Status status = PrefillAttention(*context_, stream(), units.args);
    out = data_->Values(units.out);
    return status;
  };
  std::vector<float> want, got;
  ASSERT_TRUE(run(7 * of_unit, want).ok());
  EXPECT_FALSE(std::isnan(want.front()));
  for (const size_t scratch_bytes : {of_unit, 2 * of_unit, 3 * of_unit + 100}) {
    ASSERT_TRUE(run(scratch_bytes, got).ok());
    EXPECT_EQ(got, want) << scratch_bytes << " bytes";
  }
  EXPECT_EQ(run(of_unit - 4, got).code(), absl::StatusCode::kInvalidArgument);
}

std::string KernelName(const testing::TestParamInfo<PrefillKernel>& info) {
  constexpr const char* kNames[] = {"Plain", "Warp", "Hopper"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaChooseBlocksTest,
                         testing::Values(PrefillKernel::kPlain, PrefillKernel::kWarp,
                                         PrefillKernel::kHopper),
                         KernelName);

}  // namespace
}  // namespace retroinfer::cuda
