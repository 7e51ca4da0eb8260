// FlashAttention with the queries as columns: for a tile of 32 queries of one head and a block of
// 128 keys, S^T = K Q^T, an online softmax down the columns, O^T += V^T P^T. K is used as it lies,
// V is transposed once for all tiles of a task. A task is a run of query positions of all query
// heads that share a KV head.
//
// Invariant: key blocks begin at multiples of 128 of the row in the KV, and a query passes them in
// order, behind a block of the keys that are always seen, if there are any; keys that it must not
// see have weight 0 exactly. So its result depends neither on the chunk that it came in, nor on its
// task and tile. Where blocks are chosen, a tile passes those of its unit and head alone, also in
// order.
#include "gpu_worker/ops/attention/cpu/prefill_attention.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numbers>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/attention/cpu/attention_tile.h"
#include "gpu_worker/ops/attention/cpu/choose_blocks.h"
#include "gpu_worker/ops/attention/cpu/tile_gemm.h"
#include "gpu_worker/ops/attention/prefill_attention_check.h"
#include "gpu_worker/ops/cpu/convert.h"
#include "gpu_worker/ops/cpu/cpu_features.h"
#include "gpu_worker/ops/cpu/cpu_kv_format.h"
#include "gpu_worker/ops/cpu/thread_scratch.h"

namespace retroinfer::cpu {
namespace {

// Columns (queries times heads) of a task: enough to amortise transposing the values.
constexpr int64_t kMinTaskCols = 128;
constexpr int64_t kMaxTaskCols = 512;
constexpr int64_t kTasksPerThread = 4;

static_assert(kMaxPrefillHeadDim <= kMaxTileHeadDim);

int64_t RoundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

struct Shape {
  const PrefillAttentionArgs* args;
  const TileGemm* gemm;
  int64_t head_dim;
  int64_t group;
  int64_t num_queries;
  int64_t queries_of_task;     // multiple of 32; where blocks are chosen, of a unit
  const ChosenBlocks* chosen;  // null: all
};
static_assert(kChoiceBlock == kKeyBlock && kQueryUnit % kTileCols == 0);

// One task's working memory, in the thread's scratch.
struct TileMemory {
  TileMemory(const Shape& shape, int64_t num_tiles) {
    const auto element = static_cast<int64_t>(DTypeBytes(shape.gemm->dtype));
    const int64_t tile = shape.head_dim * kTileCols;
    query_bytes = tile * element;
    const int64_t block_bytes = kKeyBlock * shape.head_dim * element;
    const int64_t sizes[] = {
        num_tiles * static_cast<int64_t>(sizeof(TileSoftmax)),
        num_tiles * query_bytes,
        num_tiles * tile * static_cast<int64_t>(sizeof(float)),
        block_bytes,
        block_bytes,
        kKeyBlock * kTileCols * static_cast<int64_t>(sizeof(float)),
        kKeyBlock * kTileCols * element,
    };
    int64_t total = 0;
    for (const int64_t size : sizes) total += RoundUp(size, 64);
    std::byte* next = ThreadScratch(static_cast<size_t>(total));
    auto take = [&next, &sizes](int i) {
      std::byte* part = next;
      next += RoundUp(sizes[i], 64);
      return part;
    };
    softmax = reinterpret_cast<TileSoftmax*>(take(0));
    queries = take(1);
    acc = reinterpret_cast<float*>(take(2));
    keys = take(3);
    values = take(4);
    scores = reinterpret_cast<float*>(take(5));
    weights = take(6);
  }

  int64_t query_bytes;   // of one tile
  TileSoftmax* softmax;  // [tiles]
  std::byte* queries;    // [tiles] packed
  float* acc;            // [tiles][head_dim][32]
  std::byte* keys;       // [kKeyBlock][head_dim], where the KV cannot be used in place
  std::byte* values;     // [head_dim][kKeyBlock]
  float* scores;         // [kKeyBlock][32]
  std::byte* weights;    // [kKeyBlock, 32] packed
};

// A tile's place in its task: queries [first, first + 32) of one head.
struct Tile {
  int64_t first_query;  // row of args.queries
  int64_t rows;
  int64_t query_head;
};

class Task {
 public:
  Task(const Shape& shape, uint32_t kv_head, int64_t first_query)
      : shape_(shape),
        kv_head_(kv_head),
        first_query_(first_query),
        num_queries_(std::min(shape.queries_of_task, shape.num_queries - first_query)),
        tiles_of_head_((num_queries_ + kTileCols - 1) / kTileCols),
        num_tiles_(tiles_of_head_ * shape.group),
        memory_(shape, num_tiles_) {}

  void Run() {
    shape_.gemm->begin();
    for (int64_t i = 0; i < num_tiles_; ++i) Begin(i);
    const int64_t first_position = shape_.args->first_token + first_query_;
    const int64_t end = first_position + num_queries_;  // keys that the last query sees
    const AttentionWindow& window = shape_.args->window;
    if (window.sees_all()) {
      for (int64_t block = 0; block < end; block += kKeyBlock) AttendBlock(block, end);
    } else {
      if (window.always_seen > 0) AttendAlwaysSeen(std::min(window.always_seen, end));
      const int64_t first_block = window.FirstSeen(first_position) / kKeyBlock * kKeyBlock;
      for (int64_t block = first_block; block < end; block += kKeyBlock) AttendBlock(block, end);
    }
    for (int64_t i = 0; i < num_tiles_; ++i) Finish(i);
    shape_.gemm->end();
  }

 private:
  Tile TileAt(int64_t i) const {
    const int64_t offset = i % tiles_of_head_ * kTileCols;
    return {.first_query = first_query_ + offset,
            .rows = std::min(kTileCols, num_queries_ - offset),
            .query_head = kv_head_ * shape_.group + i / tiles_of_head_};
  }
  float* Acc(int64_t i) const { return memory_.acc + i * shape_.head_dim * kTileCols; }

  void Begin(int64_t i) {
    const Tile tile = TileAt(i);
    const MatrixView rows = shape_.args->queries.Rows(tile.first_query, tile.rows)
                                .Columns(tile.query_head * shape_.head_dim, shape_.head_dim);
    PackQueries(reinterpret_cast<const float*>(rows.data), rows.row_stride, rows.rows,
                shape_.head_dim, shape_.args->scale * std::numbers::log2e_v<float>,
                shape_.gemm->dtype, memory_.queries + i * memory_.query_bytes);
    ResetSoftmax(memory_.softmax[i]);
    std::fill_n(Acc(i), shape_.head_dim * kTileCols, 0.0f);
  }

  // Keys [block, ...) as operand a, with zero rows where there is no key.
  const std::byte* KeysOfBlock(int64_t block, int64_t keys, int64_t padded_keys) {
    const LayerKv& kv = shape_.args->kv;
    const std::byte* in_place = kv.Key(kv_head_, block);
    const DType dtype = shape_.gemm->dtype;
    if (kv.dtype == dtype && keys == padded_keys) return in_place;
    const int64_t used = keys * shape_.head_dim;
    if (kv.dtype == dtype) {
      std::memcpy(memory_.keys, in_place, static_cast<size_t>(used) * DTypeBytes(dtype));
    } else {
      ConvertToF32(kv.dtype, in_place, reinterpret_cast<float*>(memory_.keys), used);
    }
    const auto element = static_cast<int64_t>(DTypeBytes(dtype));
    std::memset(memory_.keys + used * element, 0,
                static_cast<size_t>((padded_keys - keys) * shape_.head_dim * element));
    return memory_.keys;
  }

  // Whether the block is among those of the tile's unit and head.
  bool IsChosen(int64_t i, int64_t block) const {
    if (shape_.chosen == nullptr) return true;
    const Tile tile = TileAt(i);
    return shape_.chosen->Has(tile.first_query / kQueryUnit, tile.query_head, block / kKeyBlock);
  }
  bool IsChosenByAny(int64_t block) const {
    for (int64_t i = 0; i < num_tiles_; ++i) {
      if (IsChosen(i, block)) return true;
    }
    return false;
  }

  void AttendBlock(int64_t block, int64_t end) {
    if (!IsChosenByAny(block)) return;
    const LayerKv& kv = shape_.args->kv;
    const int64_t keys = std::min(kKeyBlock, end - block);
    const int64_t padded_keys = RoundUp(keys, kTileRowStep);
    const std::byte* key_rows = KeysOfBlock(block, keys, padded_keys);
    TransposeValues(kv.Value(kv_head_, block), kv.dtype, keys, padded_keys, shape_.head_dim,
                    shape_.gemm->dtype, memory_.values);
    for (int64_t i = 0; i < num_tiles_; ++i) {
      const Tile tile = TileAt(i);
      const int64_t position = shape_.args->first_token + tile.first_query;
      // Keys of this block that the tile's first query sees end here; may be before the block.
      const int64_t last_key = position - block;
      const int64_t seen = std::min(padded_keys, RoundUp(last_key + tile.rows, kTileRowStep));
      const Hidden hidden = BeforeWindow(position, block);
      if (seen > hidden.ends[0] && IsChosen(i, block)) {
        AttendTile(i, key_rows, seen, last_key, hidden);
      }
    }
  }

  // Keys [0, keys), which all queries see that are not before them.
  void AttendAlwaysSeen(int64_t keys) {
    const LayerKv& kv = shape_.args->kv;
    const int64_t padded_keys = RoundUp(keys, kTileRowStep);
    const std::byte* key_rows = KeysOfBlock(0, keys, padded_keys);
    TransposeValues(kv.Value(kv_head_, 0), kv.dtype, keys, padded_keys, shape_.head_dim,
                    shape_.gemm->dtype, memory_.values);
    Hidden padding{.first = keys};
    padding.ends.fill(padded_keys);
    for (int64_t i = 0; i < num_tiles_; ++i) {
      AttendTile(i, key_rows, padded_keys, shape_.args->first_token + TileAt(i).first_query,
                 padding);
    }
  }

  // Keys of a block that the columns of a tile do not see.
  struct Hidden {
    int64_t first = 0;
    std::array<int64_t, kTileCols> ends = {};  // by column
  };
  // Of the block that begins at `block`, for queries from `position` on: keys before their windows.
  Hidden BeforeWindow(int64_t position, int64_t block) const {
    Hidden hidden;
    const AttentionWindow& window = shape_.args->window;
    if (window.sees_all()) return hidden;
    for (int64_t col = 0; col < kTileCols; ++col) {
      hidden.ends[static_cast<size_t>(col)] =
          std::clamp<int64_t>(window.FirstSeen(position + col) - block, 0, kKeyBlock);
    }
    return hidden;
  }

  void AttendTile(int64_t i, const std::byte* key_rows, int64_t keys, int64_t last_key,
                  const Hidden& hidden) {
    const TileGemm& gemm = *shape_.gemm;
    Multiply(gemm, {.a = key_rows,
                    .a_stride = shape_.head_dim,
                    .b = memory_.queries + i * memory_.query_bytes,
                    .c = memory_.scores,
                    .m = keys,
                    .k = shape_.head_dim,
                    .accumulate = false});
    if (hidden.ends.back() > hidden.first) {
      std::array<int64_t, kTileCols> ends = hidden.ends;
      for (int64_t& end : ends) end = std::min(end, keys);
      HideKeys(hidden.first, ends, memory_.scores);
    }
    UpdateTile(memory_.scores, keys, last_key, shape_.head_dim, gemm.dtype, memory_.softmax[i],
               Acc(i), memory_.weights);
    Multiply(gemm, {.a = memory_.values,
                    .a_stride = kKeyBlock,
                    .b = memory_.weights,
                    .c = Acc(i),
                    .m = shape_.head_dim,
                    .k = keys,
                    .accumulate = true});
  }

  void Finish(int64_t i) {
    const Tile tile = TileAt(i);
    const MatrixView out = shape_.args->out.Rows(tile.first_query, tile.rows)
                               .Columns(tile.query_head * shape_.head_dim, shape_.head_dim);
    const auto& sinks = shape_.args->sinks;
    const float sink = sinks.empty()
                           ? -std::numeric_limits<float>::infinity()
                           : sinks.device_data()[tile.query_head] * std::numbers::log2e_v<float>;
    FinishTile(Acc(i), memory_.softmax[i], sink, tile.rows, shape_.head_dim,
               reinterpret_cast<float*>(out.data), out.row_stride);
  }

  const Shape& shape_;
  const uint32_t kv_head_;
  const int64_t first_query_;
  const int64_t num_queries_;
  const int64_t tiles_of_head_;
  const int64_t num_tiles_;
  TileMemory memory_;
};

void Attend(ThreadPool& pool, const PrefillAttentionArgs& args, const TileGemm& gemm,
            const ChosenBlocks* chosen) {
  const int64_t kv_heads = args.kv.num_kv_heads;
  Shape shape = {.args = &args,
                 .gemm = &gemm,
                 .head_dim = args.kv.head_dim,
                 .group = args.queries.cols / (kv_heads * args.kv.head_dim),
                 .num_queries = args.queries.rows,
                 .queries_of_task = 0,
                 .chosen = chosen};
  const int64_t cols = shape.num_queries * shape.group * kv_heads;
  const int64_t wanted =
      std::clamp(cols / (kTasksPerThread * pool.num_threads()), kMinTaskCols, kMaxTaskCols);
  shape.queries_of_task = RoundUp(wanted / shape.group, chosen == nullptr ? kTileCols : kQueryUnit);
  const int64_t tasks_of_head =
      (shape.num_queries + shape.queries_of_task - 1) / shape.queries_of_task;
  // The last queries see the most keys: their tasks come first, so that no long one is left over.
  pool.ParallelFor(tasks_of_head * kv_heads, [&](int64_t i) {
    const int64_t first_query = (tasks_of_head - 1 - i / kv_heads) * shape.queries_of_task;
    Task(shape, static_cast<uint32_t>(i % kv_heads), first_query).Run();
  });
}

void AttendAll(ThreadPool& pool, const PrefillAttentionArgs& args, ComputePrecision precision) {
  const bool bf16 =
      precision == ComputePrecision::kBf16 && args.kv.dtype == DType::kBf16 && HasAvx512Bf16();
  const TileGemm& gemm = ChooseTileGemm(bf16 ? DType::kBf16 : DType::kF32);
  const int64_t end = args.first_token + args.queries.rows;
  const ChoosingTokens choosing = ChoosingOf(args.choice, args.first_token, end);
  if (choosing.begin >= choosing.end) return Attend(pool, args, gemm, nullptr);
  if (args.first_token < choosing.begin) {
    Attend(pool, args.OfTokens(args.first_token, choosing.begin), gemm, nullptr);
  }
  const PrefillAttentionArgs units = args.OfTokens(choosing.begin, choosing.end);
  const ChosenBlocks chosen = ChooseBlocks(pool, units, gemm);
  Attend(pool, units, gemm, &chosen);
  if (choosing.end < end) Attend(pool, args.OfTokens(choosing.end, end), gemm, nullptr);
}

}  // namespace

absl::Status PrefillAttention(CpuStream& stream, const PrefillAttentionArgs& args,
                              ComputePrecision precision) {
  RETURN_IF_ERROR(CheckPrefillAttention(args, DType::kF32));
  RETURN_IF_ERROR(CheckPromptType(kKvElementTypes, "prefill_attention", args.kv.dtype));
  return stream.Launch([args, precision](ThreadPool& pool) { AttendAll(pool, args, precision); });
}

}  // namespace retroinfer::cpu
