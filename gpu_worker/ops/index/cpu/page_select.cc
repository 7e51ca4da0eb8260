// Invariants:
// * An item is one sequence and KV head, for all heads of the group. Candidates, their pages and
//   the tokens of a page are worked on in order, so the result depends neither on the batch nor on
//   the number of threads.
// * The pages of all candidates have places from 0 on, cluster by cluster. Chosen are those of the
//   largest (rank, place), of equal ranks the lower places; so exactly as many as the budget says,
//   if there are so many with a rank.
#include "gpu_worker/ops/index/cpu/page_select.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/cpu_kv_format.h"
#include "gpu_worker/ops/cpu/thread_scratch.h"
#include "gpu_worker/ops/cpu/token_codes.h"
#include "gpu_worker/ops/index/cpu/token_chunk.h"
#include "gpu_worker/ops/index/page_select_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/index/cpu/page_select.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
//
#include "gpu_worker/ops/cpu/vector_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Places of the chunk that are worked on: whole vectors, and whole pages.
int32_t PaddedCount(const TokenChunk& chunk) {
  const auto multiple = std::max<int32_t>(static_cast<int32_t>(hn::Lanes(FloatTag())),
                                          static_cast<int32_t>(chunk.per_page));
  return (chunk.count + multiple - 1) / multiple * multiple;
}

// products[g] = <query g, levels of the code>, with levels in the form of TokenChunk.
template <int kHeads>
void LevelProducts(const TokenChunk& chunk, const uint8_t* code, int32_t first_head,
                   float* products) {
  const hn::CappedTag<int16_t, 16> d;
  const hn::RepartitionToWide<decltype(d)> d_sum;
  const hn::Rebind<uint8_t, decltype(d)> d_byte;
  const auto lanes = static_cast<uint32_t>(hn::Lanes(d));
  const uint32_t code_bytes = chunk.head_dim / 4;
  const int16_t* const queries = chunk.queries + first_head * int64_t{chunk.head_dim};
  hn::Vec<decltype(d_sum)> sums[kHeads], more[kHeads];
  for (int g = 0; g < kHeads; ++g) sums[g] = more[g] = hn::Zero(d_sum);
  const auto add = [&](hn::Vec<decltype(d)> codes, uint32_t at) {
    const auto code_of = hn::And(codes, hn::Set(d, int16_t{3}));
    const auto levels =
        hn::Sub(hn::Sub(hn::ShiftLeft<3>(code_of), code_of), hn::ShiftRight<1>(code_of));
    for (int g = 0; g < kHeads; ++g) {
      const auto query = hn::LoadU(d, queries + g * int64_t{chunk.head_dim} + at);
      sums[g] = hn::ReorderWidenMulAccumulate(d_sum, levels, query, sums[g], more[g]);
    }
  };
  for (uint32_t i = 0; i < code_bytes; i += lanes) {
    const auto bytes = hn::PromoteTo(d, hn::LoadU(d_byte, code + i));
    add(bytes, i);
    add(hn::ShiftRight<2>(bytes), code_bytes + i);
    add(hn::ShiftRight<4>(bytes), 2 * code_bytes + i);
    add(hn::ShiftRight<6>(bytes), 3 * code_bytes + i);
  }
  for (int g = 0; g < kHeads; ++g) {
    const int32_t sum = hn::GetLane(hn::SumOfLanes(d_sum, hn::Add(sums[g], more[g])));
    products[g] = static_cast<float>(sum - chunk.offsets[first_head + g]);
  }
}

// products[g][i]: of token i of the chunk.
void FindProducts(const TokenChunk& chunk, float (*products)[kChunkTokens]) {
  for (int32_t i = 0; i < chunk.count; ++i) {
    float of_token[kMaxDecodeGroup];
    int32_t g = 0;
    for (; g + 4 <= chunk.group; g += 4) LevelProducts<4>(chunk, chunk.codes[i], g, of_token + g);
    for (; g + 2 <= chunk.group; g += 2) LevelProducts<2>(chunk, chunk.codes[i], g, of_token + g);
    for (; g < chunk.group; ++g) LevelProducts<1>(chunk, chunk.codes[i], g, of_token + g);
    for (g = 0; g < chunk.group; ++g) products[g][i] = of_token[g];
  }
}

// Turns products into logits, and these less half the variance of their error; -inf behind them.
void FindLogits(const TokenChunk& chunk, int32_t g, const float* products, float* logits,
                float* lowered) {
  const FloatTag d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto step = hn::Set(d, chunk.steps[g]), score = hn::Set(d, chunk.scores[g]);
  const auto half_square = hn::Set(d, chunk.half_squares[g]);
  const int32_t padded = PaddedCount(chunk);
  for (int32_t i = 0; i < padded; i += lanes) {
    const auto scale = hn::Mul(LoadScales(d, chunk.scales + i), step);
    const auto error = LoadScales(d, chunk.errors + i);
    const auto logit = hn::MulAdd(scale, hn::LoadU(d, products + i), score);
    hn::StoreU(logit, d, logits + i);
    hn::StoreU(hn::NegMulAdd(half_square, hn::Mul(error, error), logit), d, lowered + i);
  }
  std::fill(logits + chunk.count, logits + padded, kNothing);
  std::fill(lowered + chunk.count, lowered + padded, kNothing);
}

// Logarithms of the sums of exp() over each page. Spoils the numbers.
void SumPages(const TokenChunk& chunk, float* numbers, float* sums) {
  const FloatTag d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto per_page = static_cast<int32_t>(chunk.per_page);
  const int32_t num_pages = (chunk.count + per_page - 1) / per_page;
  float max[kChunkTokens];
  for (int32_t page = 0; page < num_pages; ++page) {
    float* const of_page = numbers + page * per_page;
    max[page] = *std::max_element(of_page, of_page + per_page);
    for (int32_t i = 0; i < per_page; ++i) of_page[i] -= max[page];
  }
  for (int32_t i = 0; i < num_pages * per_page; i += lanes) {
    hn::StoreU(ExpOf(d, hn::LoadU(d, numbers + i)), d, numbers + i);
  }
  float of_page[kChunkTokens];
  for (int32_t page = 0; page < num_pages; ++page) {
    of_page[page] = 0;
    for (int32_t i = 0; i < per_page; ++i) of_page[page] += numbers[page * per_page + i];
  }
  std::fill(of_page + num_pages, of_page + PaddedCount(chunk), 1.0f);
  float logs[kChunkTokens];
  for (int32_t i = 0; i < num_pages; i += lanes) {
    hn::StoreU(hn::Log(d, hn::LoadU(d, of_page + i)), d, logs + i);
  }
  for (int32_t page = 0; page < num_pages; ++page) {
    sums[page] = of_page[page] > 0 ? max[page] + logs[page] : kNothing;
  }
}

}  // namespace

void WeighChunk(const TokenChunk& chunk, float* masses, float* rests, int64_t stride) {
  alignas(64) float products[kMaxDecodeGroup][kChunkTokens];
  alignas(64) float logits[kChunkTokens], lowered[kChunkTokens];
  FindProducts(chunk, products);
  for (int32_t g = 0; g < chunk.group; ++g) {
    std::fill(products[g] + chunk.count, products[g] + PaddedCount(chunk), 0.0f);
    FindLogits(chunk, g, products[g], logits, lowered);
    SumPages(chunk, logits, masses + g * stride);
    SumPages(chunk, lowered, rests + g * stride);
  }
}

}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {
namespace {

HWY_EXPORT(WeighChunk);

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

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
  explicit Queries(const Row& row) {
    static_assert(kSmallLevel == 3 && kLargeLevel == 10);  // as TokenChunk has them
    const size_t dim = row.geometry.head_dim;
    const auto* const rows = reinterpret_cast<const float*>(row.args.queries.data) +
                             row.sequence * row.args.queries.row_stride +
                             int64_t{row.head} * row.group * static_cast<int64_t>(dim);
    for (size_t g = 0; g < static_cast<size_t>(row.group); ++g) {
      float query[kMaxCodedDim];
      std::copy_n(rows + g * dim, dim, query);
      float squares = 0, largest = 0;
      for (size_t i = 0; i < dim; ++i) squares += query[i] * query[i];
      TurnVector({query, dim});
      for (size_t i = 0; i < dim; ++i) largest = std::max(largest, std::fabs(query[i]));
      const float step = largest / kMostSteps;
      offsets[g] = 0;
      for (size_t i = 0; i < dim; ++i) {
        // NaN and infinity make logits that are not numbers through the cluster's own score.
        const float whole = step > 0 ? std::nearbyint(query[i] / step) : 0.0f;
        const auto number = static_cast<int16_t>(
            std::isfinite(whole) ? std::clamp(whole, -kMostSteps, kMostSteps) : 0.0f);
        steps_of[g * dim + i % 4 * (dim / 4) + i / 4] = number;
        offsets[g] += kLargeLevel * number;
      }
      scales[g] = step * row.args.scale;
      half_squares[g] = 0.5f * row.args.scale * row.args.scale * squares / static_cast<float>(dim);
    }
  }

  static constexpr float kMostSteps = 32767;
  int16_t steps_of[kMaxDecodeGroup * kMaxCodedDim];
  int32_t offsets[kMaxDecodeGroup];
  float scales[kMaxDecodeGroup];
  float half_squares[kMaxDecodeGroup];
};

// Finds the codes of tokens [first, first + count) of a cluster.
void FindCodes(const Row& row, int32_t cluster, uint32_t first, TokenChunk& chunk) {
  constexpr auto kPerBlock = static_cast<int32_t>(kClustersPerMetaBlock);
  const TokenCodeLayout layout(row.geometry.format, row.geometry.head_dim);
  const int32_t block = cluster / kPerBlock;
  const int32_t first_code =
      row.args.pool.FirstCodes(row.Block(block), row.args.layer, row.head)[cluster % kPerBlock];
  std::fill_n(chunk.scales, kChunkTokens, uint16_t{0});
  std::fill_n(chunk.errors, kChunkTokens, uint16_t{0});
  for (int32_t i = 0; i < chunk.count; ++i) {
    const CodePlace place = CodePlaceOf(block, first_code, first + static_cast<uint32_t>(i));
    const std::byte* const codes =
        row.args.pool.Codes(row.Block(place.block), row.args.layer, row.head);
    const TokenCodeFactors factors =
        reinterpret_cast<const TokenCodeFactors*>(codes + layout.factors_offset)[place.in_block];
    chunk.codes[i] = reinterpret_cast<const uint8_t*>(codes) + place.in_block * layout.code_bytes;
    chunk.scales[i] = factors.scale;
    chunk.errors[i] = factors.error;
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

// Weighs the pages of one cluster, from `place` on. Returns the place behind them.
int64_t WeighCluster(const Row& row, int32_t cluster, const Queries& queries, int64_t place) {
  const auto weigh = HWY_DYNAMIC_DISPATCH(WeighChunk);
  const MetaEntry entry = row.Entry(cluster);
  const uint32_t per_page = row.geometry.tokens_per_page();
  float scores[kMaxDecodeGroup];
  for (int32_t g = 0; g < row.group; ++g) scores[g] = row.Score(g, cluster);
  TokenChunk chunk{.count = 0,
                   .group = row.group,
                   .head_dim = row.geometry.head_dim,
                   .per_page = per_page,
                   .codes = {},
                   .scales = {},
                   .errors = {},
                   .queries = queries.steps_of,
                   .offsets = queries.offsets,
                   .steps = queries.scales,
                   .half_squares = queries.half_squares,
                   .scores = scores};
  for (uint32_t first = 0; first < entry.num_tokens; first += kChunkTokens) {
    chunk.count = static_cast<int32_t>(std::min(uint32_t{kChunkTokens}, entry.num_tokens - first));
    const auto count = static_cast<uint32_t>(chunk.count);
    RI_CHECK(place + (count + per_page - 1) / per_page <= row.args.max_pages);
    FindCodes(row, cluster, first, chunk);
    weigh(chunk, row.Masses(0) + place, row.Rests(0) + place, row.args.max_pages);
    for (uint32_t at = 0; at < count; at += per_page) {
      const uint32_t number = (first + at) / per_page;
      row.Pages()[place++] = {entry.first_place + number,
                              static_cast<uint16_t>(std::min(per_page, count - at)),
                              static_cast<uint16_t>(number)};
    }
  }
  return place;
}

// Lists the pages of all candidates with their masses. Returns the number of tokens.
int32_t WeighPages(const Row& row) {
  RI_CHECK(kChunkTokens % row.geometry.tokens_per_page() == 0);
  const Queries queries(row);
  int64_t place = 0;
  uint32_t num_tokens = 0;
  for (size_t i = 0; i < row.candidates.size(); ++i) {
    const int32_t cluster = row.candidates[i];
    row.first_pages[i] = static_cast<int32_t>(place);
    num_tokens += row.Entry(cluster).num_tokens;
    place = WeighCluster(row, cluster, queries, place);
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
