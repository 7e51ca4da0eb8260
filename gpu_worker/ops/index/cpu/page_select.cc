// Invariants:
// * An item is one sequence and KV head, for all heads of the group. Candidates, their pages and
//   the tokens of a page are worked on in order, so the result depends neither on the batch nor on
//   the number of threads.
// * The pages of all candidates have places from 0 on, cluster by cluster. Chosen are those of the
//   largest (rank, place), of equal ranks the lower places; so exactly as many as the budget says,
//   if there are so many with a rank.
#include "gpu_worker/ops/index/cpu/page_select.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/convert.h"
#include "gpu_worker/ops/cpu/cpu_kv_format.h"
#include "gpu_worker/ops/cpu/thread_scratch.h"
#include "gpu_worker/ops/cpu/token_codes.h"
#include "gpu_worker/ops/index/page_select_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/index/cpu/page_select.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// The four levels of each byte of a code.
using ByteLevels = std::array<std::array<float, 4>, 256>;
constexpr ByteLevels MakeByteLevels() {
  ByteLevels levels{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (uint32_t i = 0; i < 4; ++i) {
      levels[byte][i] = static_cast<float>(CodeLevel(byte >> (2 * i) & 3));
    }
  }
  return levels;
}
alignas(16) constexpr ByteLevels kByteLevels = MakeByteLevels();

template <int kHeads>
void LevelProducts(const uint8_t* code, uint32_t head_dim, const float* turned, float* products) {
  const hn::CappedTag<float, 4> d;
  const auto lanes = static_cast<uint32_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> sums[kHeads];
  for (auto& sum : sums) sum = hn::Zero(d);
  for (uint32_t i = 0; i < head_dim; i += lanes) {
    const auto levels = hn::LoadU(d, kByteLevels[code[i / 4]].data() + i % 4);
    for (int g = 0; g < kHeads; ++g) {
      sums[g] = hn::MulAdd(levels, hn::LoadU(d, turned + g * head_dim + i), sums[g]);
    }
  }
  for (int g = 0; g < kHeads; ++g) products[g] = hn::GetLane(hn::SumOfLanes(d, sums[g]));
}

}  // namespace

// products[g] = <turned query g, levels of the code>; `turned`: [group][head_dim].
void FindLevelProducts(const uint8_t* code, uint32_t head_dim, const float* turned, int32_t group,
                       float* products) {
  for (; group >= 4; group -= 4, turned += 4 * head_dim, products += 4) {
    LevelProducts<4>(code, head_dim, turned, products);
  }
  for (; group >= 2; group -= 2, turned += 2 * head_dim, products += 2) {
    LevelProducts<2>(code, head_dim, turned, products);
  }
  if (group == 1) LevelProducts<1>(code, head_dim, turned, products);
}

}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {
namespace {

HWY_EXPORT(FindLevelProducts);

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr uint32_t kMaxPageTokens = 64;  // of any format: a dense block has whole pages

// One sequence and KV head.
struct Row {
  Row(const PageSelectArgs& args, int64_t row_index)
      : args(args),
        geometry(args.pool.geometry),
        group(static_cast<int32_t>(args.queries.cols / geometry.head_dim / geometry.num_kv_heads)),
        row(row_index),
        sequence(row_index / geometry.num_kv_heads),
        head(static_cast<uint32_t>(row_index % geometry.num_kv_heads)),
        index(args.indexes.device_data()[sequence]),
        candidates(args.candidates.device_data() + row * args.max_candidates,
                   static_cast<size_t>(
                       args.max_candidates == 0 ? 0 : args.num_candidates.device_data()[row])),
        first_pages(args.scratch.first_pages.device_data() + row * args.max_candidates) {}

  float* Masses(int32_t g) const {
    return args.scratch.masses.device_data() + (row * group + g) * args.max_pages;
  }
  float* Rests(int32_t g) const {
    return args.scratch.rests.device_data() + (row * group + g) * args.max_pages;
  }
  float& Score(int32_t g, int32_t cluster) const {
    return args.scores.device_data()[(row * group + g) * args.max_clusters + cluster];
  }
  ChosenPage* Pages() const { return args.scratch.pages.device_data() + row * args.max_pages; }
  int32_t& num_pages() const { return args.scratch.num_pages.device_data()[row]; }
  MetaBlockId Block(int32_t number) const {
    RI_CHECK(number >= 0 && number < index.num_blocks);
    return index.block_ids[number];
  }
  const MetaEntry& Entry(int32_t cluster) const {
    constexpr auto kPerBlock = static_cast<int32_t>(kClustersPerMetaBlock);
    return args.pool.Entries(Block(cluster / kPerBlock), args.layer, head)[cluster % kPerBlock];
  }

  const PageSelectArgs& args;
  const KvGeometry& geometry;
  const int32_t group;
  const int64_t row;
  const int64_t sequence;
  const uint32_t head;
  const MetaIndexView index;
  const std::span<const int32_t> candidates;
  int32_t* const first_pages;
};

// The queries of a row's group, as codes meet them.
struct Queries {
  explicit Queries(const Row& row) : head_dim(row.geometry.head_dim) {
    const auto* const rows = reinterpret_cast<const float*>(row.args.queries.data) +
                             row.sequence * row.args.queries.row_stride +
                             int64_t{row.head} * row.group * head_dim;
    for (int32_t g = 0; g < row.group; ++g) {
      const std::span<float> query(turned + static_cast<size_t>(g) * head_dim, head_dim);
      std::copy_n(rows + int64_t{g} * head_dim, head_dim, query.begin());
      TurnVector(query);
      float squares = 0;
      for (const float number : query) squares += number * number;
      half_squares[g] =
          0.5f * row.args.scale * row.args.scale * squares / static_cast<float>(head_dim);
    }
  }

  uint32_t head_dim;
  float turned[kMaxDecodeGroup * kMaxCodedDim];
  float half_squares[kMaxDecodeGroup];  // half the variance of a logit's error, over error^2
};

float FromF16(uint16_t bits) {
  float value = 0;
  ConvertToF32(DType::kF16, reinterpret_cast<const std::byte*>(&bits), &value, 1);
  return value;
}

// Logits of the tokens of one page, and less half the variance of their error.
struct PageLogits {
  float logits[kMaxDecodeGroup][kMaxPageTokens];
  float lowered[kMaxDecodeGroup][kMaxPageTokens];
};

void EstimateLogits(const Row& row, const Queries& queries, int32_t cluster, uint32_t first,
                    uint32_t count, PageLogits& page) {
  constexpr auto kPerBlock = static_cast<int32_t>(kClustersPerMetaBlock);
  const auto find = HWY_DYNAMIC_DISPATCH(FindLevelProducts);
  const TokenCodeLayout codes(row.geometry.format, row.geometry.head_dim);
  const int32_t block = cluster / kPerBlock;
  const int32_t first_code =
      row.args.pool.FirstCodes(row.Block(block), row.args.layer, row.head)[cluster % kPerBlock];
  for (uint32_t i = 0; i < count; ++i) {
    const CodePlace place = CodePlaceOf(block, first_code, first + i);
    const std::byte* const of_block =
        row.args.pool.Codes(row.Block(place.block), row.args.layer, row.head);
    const TokenCodeFactors factors =
        reinterpret_cast<const TokenCodeFactors*>(of_block + codes.factors_offset)[place.in_block];
    float products[kMaxDecodeGroup];
    find(reinterpret_cast<const uint8_t*>(of_block) + place.in_block * codes.code_bytes,
         queries.head_dim, queries.turned, row.group, products);
    const float scale = row.args.scale * FromF16(factors.scale), error = FromF16(factors.error);
    for (int32_t g = 0; g < row.group; ++g) {
      page.logits[g][i] = row.Score(g, cluster) + scale * products[g];
      page.lowered[g][i] = page.logits[g][i] - queries.half_squares[g] * error * error;
    }
  }
}

// Logarithm of the sum of exponentials; -inf of none.
float LogSum(std::span<const float> numbers) {
  float max = kMinusInfinity;
  for (const float number : numbers) max = std::max(max, number);
  if (max == kMinusInfinity) return max;
  float sum = 0;
  for (const float number : numbers) sum += std::exp(number - max);
  return max + std::log(sum);
}

// Lists the pages of all candidates with their masses. Returns the number of tokens.
int32_t WeighPages(const Row& row) {
  const uint32_t per_page = row.geometry.tokens_per_page();
  RI_CHECK(per_page <= kMaxPageTokens);
  const Queries queries(row);
  int64_t place = 0;
  uint32_t num_tokens = 0;
  PageLogits page;
  for (size_t i = 0; i < row.candidates.size(); ++i) {
    const int32_t cluster = row.candidates[i];
    const MetaEntry entry = row.Entry(cluster);
    row.first_pages[i] = static_cast<int32_t>(place);
    num_tokens += entry.num_tokens;
    for (uint32_t first = 0; first < entry.num_tokens; first += per_page, ++place) {
      RI_CHECK(place < row.args.max_pages);
      const uint32_t count = std::min(per_page, entry.num_tokens - first);
      row.Pages()[place] = {entry.first_page + first / per_page, static_cast<uint16_t>(count),
                            static_cast<uint16_t>(first / per_page)};
      EstimateLogits(row, queries, cluster, first, count, page);
      for (int32_t g = 0; g < row.group; ++g) {
        row.Masses(g)[place] = LogSum({page.logits[g], count});
        row.Rests(g)[place] = LogSum({page.lowered[g], count});
      }
    }
  }
  row.num_pages() = static_cast<int32_t>(place);
  return static_cast<int32_t>(num_tokens);
}

struct RankedPage {
  float rank;
  int32_t place;
};

void ChoosePages(const Row& row) {
  const PageSelectArgs& args = row.args;
  const auto count = static_cast<size_t>(row.num_pages());
  float log_sums[kMaxDecodeGroup];
  for (int32_t g = 0; g < row.group; ++g) log_sums[g] = LogSum({row.Masses(g), count});
  auto* const ranked =
      reinterpret_cast<RankedPage*>(ThreadScratch(std::max<size_t>(1, count) * sizeof(RankedPage)));
  size_t num_ranked = 0;
  for (size_t place = 0; place < count; ++place) {
    float rank = kMinusInfinity;
    for (int32_t g = 0; g < row.group; ++g)
      rank = std::max(rank, row.Masses(g)[place] - log_sums[g]);
    if (rank > kMinusInfinity) ranked[num_ranked++] = {rank, static_cast<int32_t>(place)};
  }
  const int64_t budget = args.budgets.device_data()[row.sequence].num_pages;
  const size_t wanted =
      std::min(num_ranked, static_cast<size_t>(std::clamp<int64_t>(budget, 0, args.max_chosen)));
  if (wanted < num_ranked) {
    std::nth_element(ranked, ranked + wanted, ranked + num_ranked,
                     [](const RankedPage& a, const RankedPage& b) {
                       return a.rank > b.rank || (a.rank == b.rank && a.place < b.place);
                     });
  }
  std::sort(ranked, ranked + wanted,
            [](const RankedPage& a, const RankedPage& b) { return a.place < b.place; });
  ChosenPage* const chosen = args.chosen.device_data() + row.row * args.max_chosen;
  for (size_t i = 0; i < wanted; ++i) {
    chosen[i] = row.Pages()[ranked[i].place];
    for (int32_t g = 0; g < row.group; ++g) row.Rests(g)[ranked[i].place] = kMinusInfinity;
  }
  args.num_chosen.device_data()[row.row] = static_cast<int32_t>(wanted);
}

void FindRests(const Row& row) {
  for (size_t i = 0; i < row.candidates.size(); ++i) {
    const int32_t cluster = row.candidates[i];
    const int32_t first = row.first_pages[i];
    const int32_t end = i + 1 < row.candidates.size() ? row.first_pages[i + 1] : row.num_pages();
    const float log_size = std::log(static_cast<float>(row.Entry(cluster).num_tokens));
    for (int32_t g = 0; g < row.group; ++g) {
      row.Score(g, cluster) =
          LogSum({row.Rests(g) + first, static_cast<size_t>(end - first)}) - log_size;
    }
  }
}

template <typename Work>
absl::Status ForEachRow(CpuStream& stream, const PageSelectArgs& args, Work work) {
  RETURN_IF_ERROR(CheckPageSelect(args, DType::kF32));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  return stream.Launch([args, work](ThreadPool& pool) {
    pool.ParallelFor(args.queries.rows * args.pool.geometry.num_kv_heads,
                     [&](int64_t row) { work(Row(args, row)); });
  });
}

}  // namespace

absl::Status PageSelect(CpuStream& stream, const PageSelectArgs& args) {
  return ForEachRow(stream, args, [](const Row& row) {
    row.args.num_tokens.device_data()[row.row] = WeighPages(row);
    ChoosePages(row);
  });
}

absl::Status CandidateRest(CpuStream& stream, const PageSelectArgs& args) {
  return ForEachRow(stream, args, FindRests);
}

}  // namespace retroinfer::cpu
#endif  // HWY_ONCE
