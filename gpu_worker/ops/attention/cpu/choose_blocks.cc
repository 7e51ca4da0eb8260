// Scores of groups as one matrix product: 16 neighbouring keys of a head lie one after the other,
// so a group of keys is a row of 16 * head_dim numbers as it lies. A group of queries is such a
// column, its queries in reverse order. Columns of several heads and units make a tile of 32.
//
// Invariant: a column's scores, weights and choice depend on no other column of its tile, nor on
// how many groups of keys behind its own the tile has: groups are gone through in order, and those
// that a column does not see have weight 0 exactly.
#include "gpu_worker/ops/attention/cpu/choose_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <numeric>
#include <span>

#include "gpu_worker/ops/attention/cpu/attention_tile.h"
#include "gpu_worker/ops/cpu/convert.h"
#include "gpu_worker/ops/cpu/thread_scratch.h"

namespace retroinfer::cpu {
namespace {

constexpr int64_t kGroupsOfUnit = kQueryUnit / kChoiceGroup;
constexpr int64_t kGroupsOfBlock = kChoiceBlock / kChoiceGroup;
constexpr int64_t kChunk = kTileRowStep;  // groups of keys that are multiplied at once
static_assert(kChunk % kGroupsOfBlock == 0 && kTileCols % kGroupsOfUnit == 0);

int64_t RoundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

struct Shape {
  Shape(const PrefillAttentionArgs& from, const TileGemm& product)
      : args(&from),
        gemm(&product),
        head_dim(from.kv.head_dim),
        group(from.queries.cols / (int64_t{from.kv.num_kv_heads} * head_dim)),
        first_unit((from.first_token - kSinkTokens) / kQueryUnit),
        num_units(from.queries.rows / kQueryUnit),
        pairs_of_tile(kTileCols / kGroupsOfUnit) {}

  const PrefillAttentionArgs* args;
  const TileGemm* gemm;
  int64_t head_dim;
  int64_t group;          // query heads of a KV head
  int64_t first_unit;     // counted from the sequence's first
  int64_t num_units;      // of the call
  int64_t pairs_of_tile;  // of a unit and a query head
};

// The working memory of a tile, in the thread's scratch.
struct TileMemory {
  TileMemory(const Shape& shape, int64_t num_groups, int64_t num_blocks) {
    const auto element = static_cast<int64_t>(DTypeBytes(shape.gemm->dtype));
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    const int64_t row = kChoiceGroup * shape.head_dim;
    const int64_t sizes[] = {
        static_cast<int64_t>(sizeof(TileSoftmax)),
        kTileCols * shape.head_dim * kFloat,
        row * kTileCols * element,
        kChunk * row * element,
        RoundUp(num_groups, kChunk) * kTileCols * kFloat,
        kChunk * kTileCols * kFloat,
        RoundUp(num_blocks, kChunk / kGroupsOfBlock) * kTileCols * kFloat,
        num_blocks * kFloat,
        num_blocks * static_cast<int64_t>(sizeof(int32_t)),
    };
    int64_t total = 0;
    for (const int64_t size : sizes) total += RoundUp(size, 64);
    std::byte* next = ThreadScratch(static_cast<size_t>(total));
    const auto take = [&next, &sizes](int i) {
      std::byte* part = next;
      next += RoundUp(sizes[i], 64);
      return part;
    };
    softmax = reinterpret_cast<TileSoftmax*>(take(0));
    gathered = reinterpret_cast<float*>(take(1));
    queries = take(2);
    keys = take(3);
    scores = reinterpret_cast<float*>(take(4));
    weights = take(5);
    sums = reinterpret_cast<float*>(take(6));
    mass = reinterpret_cast<float*>(take(7));
    order = reinterpret_cast<int32_t*>(take(8));
  }

  TileSoftmax* softmax;
  float* gathered;     // [32][head_dim]
  std::byte* queries;  // [16 * head_dim, 32] packed
  std::byte* keys;     // [kChunk][16 * head_dim], where the KV cannot be used in place
  float* scores;       // [groups][32]
  std::byte* weights;  // [kChunk][32] f32
  float* sums;         // [blocks][32]
  float* mass;         // [blocks], of one unit and head
  int32_t* order;      // [blocks]
};

// Pairs [first_pair, first_pair + num_pairs) of a KV head: pair p is unit p / group of the call,
// and query head p % group of the KV head's.
class Tile {
 public:
  Tile(const Shape& shape, int64_t kv_head, int64_t first_pair, int64_t num_pairs,
       ChosenBlocks& out)
      : shape_(shape),
        kv_head_(kv_head),
        first_pair_(first_pair),
        num_pairs_(num_pairs),
        last_unit_(shape.first_unit + (first_pair + num_pairs - 1) / shape.group),
        num_groups_((last_unit_ + 1) * kGroupsOfUnit),
        num_blocks_(BlocksOf(last_unit_)),
        memory_(shape, num_groups_, num_blocks_),
        out_(out) {}

  void Run() {
    shape_.gemm->begin();
    PackGroups();
    Score();
    shape_.gemm->end();
    SumBlocks();
    for (int64_t pair = 0; pair < num_pairs_; ++pair) Choose(pair);
  }

 private:
  static int64_t UnitBegin(int64_t unit) { return kSinkTokens + unit * kQueryUnit; }
  static int64_t BlocksOf(int64_t unit) {
    return (UnitBegin(unit + 1) + kChoiceBlock - 1) / kChoiceBlock;
  }
  int64_t UnitOf(int64_t pair) const { return (first_pair_ + pair) / shape_.group; }
  int64_t HeadOf(int64_t pair) const {
    return kv_head_ * shape_.group + (first_pair_ + pair) % shape_.group;
  }
  // Groups of keys that do not end behind a column's group of queries.
  int64_t SeenBy(int64_t col) const {
    return (shape_.first_unit + UnitOf(col / kGroupsOfUnit)) * kGroupsOfUnit + col % kGroupsOfUnit +
           1;
  }

  void PackGroups() {
    const int64_t d = shape_.head_dim, cols = num_pairs_ * kGroupsOfUnit;
    const auto element = static_cast<int64_t>(DTypeBytes(shape_.gemm->dtype));
    const float factor =
        shape_.args->scale * std::numbers::log2e_v<float> / static_cast<float>(kChoiceGroup);
    const MatrixView& queries = shape_.args->queries;
    for (int64_t s = 0; s < kChoiceGroup; ++s) {
      for (int64_t col = 0; col < cols; ++col) {
        const int64_t pair = col / kGroupsOfUnit;
        const int64_t row =
            UnitOf(pair) * kQueryUnit + col % kGroupsOfUnit * kChoiceGroup + kChoiceGroup - 1 - s;
        const auto* from = reinterpret_cast<const float*>(queries.data) + row * queries.row_stride +
                           HeadOf(pair) * d;
        std::copy_n(from, d, memory_.gathered + col * d);
      }
      PackQueries(memory_.gathered, d, cols, d, factor, shape_.gemm->dtype,
                  memory_.queries + s * d * kTileCols * element);
    }
  }

  // Groups [first, first + kChunk) of keys as operand a, with zeros behind the last group.
  const std::byte* KeysFrom(int64_t first) {
    const LayerKv& kv = shape_.args->kv;
    const DType dtype = shape_.gemm->dtype;
    const std::byte* in_place = kv.Key(static_cast<uint32_t>(kv_head_), first * kChoiceGroup);
    const int64_t groups = std::min(kChunk, num_groups_ - first);
    if (kv.dtype == dtype && groups == kChunk) return in_place;
    const int64_t row = kChoiceGroup * shape_.head_dim;
    const auto element = static_cast<int64_t>(DTypeBytes(dtype));
    if (kv.dtype == dtype) {
      std::memcpy(memory_.keys, in_place, static_cast<size_t>(groups * row * element));
    } else {
      ConvertToF32(kv.dtype, in_place, reinterpret_cast<float*>(memory_.keys), groups * row);
    }
    std::memset(memory_.keys + groups * row * element, 0,
                static_cast<size_t>((kChunk - groups) * row * element));
    return memory_.keys;
  }

  void Score() {
    const int64_t row = kChoiceGroup * shape_.head_dim;
    for (int64_t first = 0; first < num_groups_; first += kChunk) {
      Multiply(*shape_.gemm, {.a = KeysFrom(first),
                              .a_stride = row,
                              .b = memory_.queries,
                              .c = memory_.scores + first * kTileCols,
                              .m = kChunk,
                              .k = row,
                              .accumulate = false});
    }
    // Padding, and keys behind a column's queries.
    for (int64_t col = 0; col < kTileCols; ++col) {
      const int64_t seen = col < num_pairs_ * kGroupsOfUnit ? SeenBy(col) : num_groups_;
      for (int64_t i = seen; i < RoundUp(num_groups_, kChunk); ++i) {
        memory_.scores[i * kTileCols + col] = -std::numeric_limits<float>::infinity();
      }
    }
  }

  // sums[b][c]: weight of block b for column c, relative to the column's largest score.
  void SumBlocks() {
    TileSoftmax& softmax = *memory_.softmax;
    ResetSoftmax(softmax);
    for (int64_t i = 0; i < num_groups_; ++i) {
      const float* row = memory_.scores + i * kTileCols;
      for (int64_t c = 0; c < kTileCols; ++c) softmax.max[c] = std::max(softmax.max[c], row[c]);
    }
    std::fill_n(memory_.sums, RoundUp(num_blocks_, kChunk / kGroupsOfBlock) * kTileCols, 0.0f);
    for (int64_t first = 0; first < num_groups_; first += kChunk) {
      // The maximum is known already, so weights of all chunks are relative to the same.
      UpdateTile(memory_.scores + first * kTileCols, kChunk, kChunk, 0, DType::kF32, softmax,
                 nullptr, memory_.weights);
      const auto* weights = reinterpret_cast<const float*>(memory_.weights);
      for (int64_t i = 0; i < kChunk; ++i) {
        float* sum = memory_.sums + (first + i) / kGroupsOfBlock * kTileCols;
        for (int64_t c = 0; c < kTileCols; ++c) sum[c] += weights[i * kTileCols + c];
      }
    }
  }

  void Choose(int64_t pair) {
    const int64_t unit = shape_.first_unit + UnitOf(pair), head = HeadOf(pair);
    const int64_t blocks = BlocksOf(unit);
    const int64_t local = (UnitBegin(unit) - kChoiceBlock) / kChoiceBlock;
    const auto is_floor = [local](int64_t block) { return block == 0 || block >= local; };
    float total = 0, held = 0;
    int64_t others = 0;
    for (int64_t block = 0; block < blocks; ++block) {
      float mass = 0;
      for (int64_t g = 0; g < kGroupsOfUnit; ++g) {
        const int64_t col = pair * kGroupsOfUnit + g;
        mass += memory_.sums[block * kTileCols + col] / memory_.softmax->sum[col];
      }
      memory_.mass[block] = mass;
      total += mass;
      if (is_floor(block)) {
        held += mass;
        out_.Add(UnitOf(pair), head, block);
      } else {
        memory_.order[others++] = static_cast<int32_t>(block);
      }
    }
    const std::span<int32_t> order(memory_.order, static_cast<size_t>(others));
    const bool is_ordered = std::isfinite(total);  // else no block may be left out
    if (is_ordered) {
      std::ranges::sort(order, [this](int32_t a, int32_t b) {
        return memory_.mass[a] != memory_.mass[b] ? memory_.mass[a] > memory_.mass[b] : a < b;
      });
    }
    const float wanted = shape_.args->choice.threshold * total;
    for (const int32_t block : order) {
      if (is_ordered && held >= wanted) break;
      out_.Add(UnitOf(pair), head, block);
      held += memory_.mass[block];
    }
  }

  const Shape& shape_;
  const int64_t kv_head_;
  const int64_t first_pair_;
  const int64_t num_pairs_;
  const int64_t last_unit_;
  const int64_t num_groups_;
  const int64_t num_blocks_;
  TileMemory memory_;
  ChosenBlocks& out_;
};

}  // namespace

ChosenBlocks ChooseBlocks(ThreadPool& pool, const PrefillAttentionArgs& args,
                          const TileGemm& gemm) {
  const Shape shape(args, gemm);
  const int64_t kv_heads = args.kv.num_kv_heads, pairs = shape.num_units * shape.group;
  const int64_t end = args.first_token + args.queries.rows;
  ChosenBlocks chosen(shape.num_units, kv_heads * shape.group,
                      (end + kChoiceBlock - 1) / kChoiceBlock);
  const int64_t tiles = (pairs + shape.pairs_of_tile - 1) / shape.pairs_of_tile;
  pool.ParallelFor(tiles * kv_heads, [&](int64_t i) {
    const int64_t first = i / kv_heads * shape.pairs_of_tile;
    Tile(shape, i % kv_heads, first, std::min(shape.pairs_of_tile, pairs - first), chosen).Run();
  });
  return chosen;
}

}  // namespace retroinfer::cpu
