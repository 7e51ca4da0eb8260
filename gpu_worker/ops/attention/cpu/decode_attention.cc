// The tokens of a (sequence, KV head) are cut into parts whose bounds depend on the sequence alone:
// the dense zone into runs of blocks, the execution buffer into runs of pages. One task attends one
// part; then one task for each (sequence, KV head) merges its parts and the estimate, in order. So
// a sequence's result depends neither on the batch nor on the number of threads.
#include "gpu_worker/ops/attention/cpu/decode_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/attention/cpu/chunk_feeder.h"
#include "gpu_worker/ops/attention/decode_attention_check.h"
#include "gpu_worker/ops/cpu/addressable.h"
#include "gpu_worker/ops/cpu/cpu_kv_format.h"

namespace retroinfer::cpu {
namespace {

constexpr int64_t kMinBlocksOfPart = 4;
constexpr int64_t kMinPagesOfPart = 64;
constexpr int64_t kMaxStates = (kMaxDecodeGroup + kMaxGroup - 1) / kMaxGroup;

// How many items go into each part, if there may be `max_parts`.
int64_t ItemsOfPart(int64_t items, int64_t min_items, int64_t max_parts) {
  return std::max(min_items, (items + max_parts - 1) / max_parts);
}

int64_t NumParts(int64_t items, int64_t items_of_part) {
  return (items + items_of_part - 1) / items_of_part;
}

// The call's shapes, and the places of its working memory.
struct Plan {
  const DecodeAttentionArgs* args;
  int64_t batch;
  int64_t kv_heads;
  int64_t group;
  uint32_t head_dim;
  int64_t* first_task;  // [batch * kv_heads + 1]: tasks before each (sequence, KV head)
  float* partials;      // [batch * kv_heads][kMaxPartsOfHead][group][2 + head_dim]: max, sum, acc

  int64_t partial_floats() const { return 2 + head_dim; }
  float* Partial(int64_t sequence_head, int64_t part, int64_t g) const {
    return partials + ((sequence_head * kMaxPartsOfHead + part) * group + g) * partial_floats();
  }
  // Blocks of the dense zone; the sink, which has a block of its own, included.
  int64_t NumDenseBlocks(int64_t sequence) const {
    const DenseZone& zone = args->zones.device_data()[sequence];
    if (zone.num_window_tokens == 0) return zone.num_sink_tokens > 0 ? 1 : 0;
    return 1 + (zone.num_window_tokens + kDenseBlockTokens - 1) / kDenseBlockTokens;
  }
  int64_t BlocksOfPart(int64_t sequence) const {
    return ItemsOfPart(NumDenseBlocks(sequence), kMinBlocksOfPart, kMaxDensePartsOfHead);
  }
  int64_t NumDenseParts(int64_t sequence) const {
    return NumParts(NumDenseBlocks(sequence), BlocksOfPart(sequence));
  }
  float SinkOf(int64_t sequence_head, int64_t g) const {
    if (args->sinks.empty()) return -std::numeric_limits<float>::infinity();
    return args->sinks.device_data()[sequence_head % kv_heads * group + g];
  }
  int64_t NumPages(int64_t sequence_head) const {
    return args->num_pages.empty() || IsOfRun(sequence_head / kv_heads)
               ? 0
               : args->num_pages.device_data()[sequence_head];
  }
  // The other rows of a run have no pages of their own.
  bool IsOfRun(int64_t sequence) const {
    return std::any_of(args->runs.device_data(), args->runs.device_data() + args->runs.size(),
                       [=](const RowRun& run) { return run.first_row == sequence; });
  }
  int64_t PagesOfPart(int64_t sequence_head) const {
    return ItemsOfPart(NumPages(sequence_head), kMinPagesOfPart, kMaxPagePartsOfHead);
  }
  int64_t NumPageParts(int64_t sequence_head) const {
    return NumParts(NumPages(sequence_head), PagesOfPart(sequence_head));
  }
};

void FeedDensePart(const Plan& plan, int64_t sequence, uint32_t kv_head, int64_t part,
                   ChunkFeeder& feeder) {
  const DecodeAttentionArgs& args = *plan.args;
  const DenseZone& zone = args.zones.device_data()[sequence];
  const int64_t blocks_of_part = plan.BlocksOfPart(sequence);
  const int64_t end = std::min(plan.NumDenseBlocks(sequence), (part + 1) * blocks_of_part);
  const int64_t hidden = args.window == 0 ? 0 : zone.num_window_tokens - args.window;
  for (int64_t block = part * blocks_of_part; block < end; ++block) {
    const int64_t window_before = (block - 1) * kDenseBlockTokens;
    const int64_t tokens =
        block == 0 ? zone.num_sink_tokens
                   : std::min<int64_t>(kDenseBlockTokens, zone.num_window_tokens - window_before);
    const int64_t first = block == 0 ? 0 : std::max<int64_t>(0, hidden - window_before);
    if (first >= tokens) continue;
    feeder.AddPages(args.pool.Run(zone.block_ids[block], args.layer, kv_head),
                    static_cast<int32_t>(first), static_cast<int32_t>(tokens));
  }
}

void FeedPagePart(const Plan& plan, int64_t sequence_head, int64_t part, ChunkFeeder& feeder) {
  const PageRef* pages = plan.args->pages.device_data() + sequence_head * plan.args->max_pages;
  const int64_t pages_of_part = plan.PagesOfPart(sequence_head);
  const int64_t end = std::min(plan.NumPages(sequence_head), (part + 1) * pages_of_part);
  for (int64_t i = part * pages_of_part; i < end; ++i) {
    feeder.AddPage(pages[i].page, 0, pages[i].num_tokens);
  }
}

void AttendPart(const Plan& plan, int64_t sequence_head, int64_t part) {
  const int64_t sequence = sequence_head / plan.kv_heads;
  const int64_t kv_head = sequence_head % plan.kv_heads;
  const KvGeometry& geometry = plan.args->pool.geometry;
  const auto* queries = reinterpret_cast<const float*>(plan.args->queries.Rows(sequence, 1).data) +
                        kv_head * plan.group * plan.head_dim;
  std::array<AttentionState, kMaxStates> memory;
  const int64_t num_states = (plan.group + kMaxGroup - 1) / kMaxGroup;
  const int64_t heads_of_state = (plan.group + num_states - 1) / num_states;
  const std::span<AttentionState> states(memory.data(), static_cast<size_t>(num_states));
  for (int64_t first = 0; AttentionState & state : states) {
    const int64_t heads = std::min(heads_of_state, plan.group - first);
    BeginAttention(geometry.format.token.element, plan.head_dim, static_cast<int32_t>(heads),
                   queries + first * plan.head_dim, plan.args->scale, state);
    first += heads;
  }
  ChunkFeeder feeder(geometry, states);
  const int64_t dense_parts = plan.NumDenseParts(sequence);
  if (part < dense_parts) {
    FeedDensePart(plan, sequence, static_cast<uint32_t>(kv_head), part, feeder);
  } else {
    FeedPagePart(plan, sequence_head, part - dense_parts, feeder);
  }
  feeder.Finish();
  for (int64_t g = 0; g < plan.group; ++g) {
    float* partial = plan.Partial(sequence_head, part, g);
    const AttentionState& state = states[static_cast<size_t>(g / heads_of_state)];
    const auto of_state = static_cast<int32_t>(g % heads_of_state);
    partial[0] = state.max[static_cast<size_t>(of_state)];
    partial[1] = state.sum[static_cast<size_t>(of_state)];
    ReadAccumulator(state, of_state, partial + 2);
  }
}

// Adds a partial result to out and sum, both relative to the maximum `max`.
void AddPartial(float max, float partial_max, float partial_sum, const float* acc,
                uint32_t head_dim, float& sum, float* out) {
  if (partial_sum == 0) return;
  const float weight = std::exp(partial_max - max);
  sum += weight * partial_sum;
  for (uint32_t i = 0; i < head_dim; ++i) out[i] += weight * acc[i];
}

// The share of what was left out, `left_out` relative to its own maximum.
float ShareOf(float left_out_max, float left_out, float attended_max, float attended) {
  const float max = std::max(left_out > 0 ? left_out_max : attended_max, attended_max);
  const auto mass = [max](float of_max, float sum) {
    return sum > 0 ? sum * std::exp(of_max - max) : 0.0f;
  };
  const float out = mass(left_out_max, left_out);
  const float all = out + mass(attended_max, attended);
  return all > 0 ? out / all : 0.0f;
}

void MergeParts(const Plan& plan, int64_t sequence_head) {
  const AttentionPartialView& estimate = plan.args->estimate;
  const int64_t sequence = sequence_head / plan.kv_heads;
  const int64_t num_parts = plan.first_task[sequence_head + 1] - plan.first_task[sequence_head];
  for (int64_t g = 0; g < plan.group; ++g) {
    const int64_t query = sequence_head * plan.group + g;  // of [batch, query_heads]
    const bool has_estimate = !estimate.max.empty();
    float max =
        has_estimate ? estimate.max.device_data()[query] : -std::numeric_limits<float>::infinity();
    for (int64_t p = 0; p < num_parts; ++p) max = std::max(max, *plan.Partial(sequence_head, p, g));
    const float sink = plan.SinkOf(sequence_head, g);
    max = std::max(max, sink);
    std::array<float, kMaxHeadDim> merged = {};
    float sum = sink > -std::numeric_limits<float>::infinity() ? std::exp(sink - max) : 0.0f;
    for (int64_t p = 0; p < num_parts; ++p) {
      const float* partial = plan.Partial(sequence_head, p, g);
      AddPartial(max, partial[0], partial[1], partial + 2, plan.head_dim, sum, merged.data());
    }
    if (!plan.args->unseen_share.empty()) {
      plan.args->unseen_share.device_data()[query] =
          ShareOf(plan.args->unseen.max.device_data()[query],
                  plan.args->unseen.sum.device_data()[query], max, sum);
    }
    if (has_estimate) {
      AddPartial(max, estimate.max.device_data()[query], estimate.sum.device_data()[query],
                 estimate.acc.device_data() + query * plan.head_dim, plan.head_dim, sum,
                 merged.data());
    }
    const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
    auto* out = reinterpret_cast<float*>(plan.args->out.Rows(sequence, 1).data) +
                (query - sequence * plan.kv_heads * plan.group) * plan.head_dim;
    for (uint32_t i = 0; i < plan.head_dim; ++i) out[i] = merged[i] * inverse;
  }
}

void Run(ThreadPool& pool, const Plan& plan) {
  const int64_t sequence_heads = plan.batch * plan.kv_heads;
  plan.first_task[0] = 0;
  for (int64_t i = 0; i < sequence_heads; ++i) {
    plan.first_task[i + 1] =
        plan.first_task[i] + plan.NumDenseParts(i / plan.kv_heads) + plan.NumPageParts(i);
  }
  pool.ParallelFor(plan.first_task[sequence_heads], [&plan, sequence_heads](int64_t task) {
    const int64_t* begin = plan.first_task;
    const int64_t sequence_head =
        std::upper_bound(begin, begin + sequence_heads + 1, task) - begin - 1;
    AttendPart(plan, sequence_head, task - plan.first_task[sequence_head]);
  });
  // Merging is a thousandth of the work: threads are not worth waking for a few heads.
  if (sequence_heads < 16) {
    for (int64_t i = 0; i < sequence_heads; ++i) MergeParts(plan, i);
  } else {
    pool.ParallelFor(sequence_heads, [&plan](int64_t i) { MergeParts(plan, i); });
  }
}

}  // namespace

absl::Status DecodeAttention(CpuStream& stream, const DecodeAttentionArgs& args) {
  RETURN_IF_ERROR(CheckDecodeAttention(args, DType::kF32, &DecodeAttentionScratchBytes));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  if (args.estimate_ready != nullptr) RETURN_IF_ERROR(stream.Wait(*args.estimate_ready));
  return stream.Launch([args](ThreadPool& pool) {
    const KvGeometry& geometry = args.pool.geometry;
    Plan plan = {.args = &args,
                 .batch = args.queries.rows,
                 .kv_heads = geometry.num_kv_heads,
                 .group = args.queries.cols / (int64_t{geometry.num_kv_heads} * geometry.head_dim),
                 .head_dim = geometry.head_dim,
                 .first_task = reinterpret_cast<int64_t*>(args.scratch.device_data()),
                 .partials = nullptr};
    plan.partials = reinterpret_cast<float*>(args.scratch.device_data() +
                                             TaskTableBytes(plan.batch * plan.kv_heads));
    Run(pool, plan);
  });
}

}  // namespace retroinfer::cpu
