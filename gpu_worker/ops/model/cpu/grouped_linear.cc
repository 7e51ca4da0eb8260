// A task has an expert and a shard of its features, and takes the expert's pairs in blocks of as
// many rows as linear's have, so that a row's result depends on nothing but the row.
#include "gpu_worker/ops/model/cpu/grouped_linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/convert.h"
#include "gpu_worker/ops/cpu/parallel_rows.h"
#include "gpu_worker/ops/cpu/thread_scratch.h"
#include "gpu_worker/ops/model/cpu/cpu_linear.h"
#include "gpu_worker/ops/model/grouped_linear_check.h"

namespace retroinfer::cpu {
namespace {

float* RowOf(const MatrixView& matrix, int64_t row) {
  return reinterpret_cast<float*>(matrix.Rows(row, 1).data);
}

// Calls body(expert, pairs) with the pairs of one expert in one group, counted from the first of
// all. `task` is below num_groups * num_experts.
template <typename Body>
void ForPairs(const ExpertRoutes& routes, const RoutePlan& plan, int64_t task, const Body& body) {
  const int64_t group = task / plan.num_experts;
  const int64_t expert = task % plan.num_experts;
  const int32_t* const words = routes.plan.device_data() + group * plan.group_words();
  const int32_t* const begins = words + plan.begins_at() + expert;
  body(expert, group * plan.group_pairs(),
       std::span(words + plan.pairs_at() + begins[0], static_cast<size_t>(begins[1] - begins[0])));
}

// The rows of a block in the type of the products, dense; zeros up to `block_rows`.
const std::byte* GatherRows(const CpuLinear& linear, const MatrixView& in, int64_t first_pair,
                            std::span<const int32_t> pairs, int64_t pairs_of_row,
                            int64_t block_rows) {
  const size_t row_bytes = static_cast<size_t>(in.cols) * DTypeBytes(linear.dtype_);
  std::byte* const rows = ThreadScratch(static_cast<size_t>(block_rows) * row_bytes);
  for (size_t i = 0; i < pairs.size(); ++i) {
    ConvertFromF32(RowOf(in, (first_pair + pairs[i]) / pairs_of_row), linear.dtype_,
                   rows + i * row_bytes, in.cols);
  }
  std::memset(rows + pairs.size() * row_bytes, 0,
              (static_cast<size_t>(block_rows) - pairs.size()) * row_bytes);
  return rows;
}

// Calls body(shard, block of pairs, its rows, first pair) for all work of a grouped product.
// `parts`: of an expert; shards are those of the first.
template <typename Body>
void ForBlocks(ThreadPool& pool, const CpuLinear& linear, const MatrixView& in,
               const ExpertRoutes& routes, int64_t rows, int64_t pairs_of_row, bool decode,
               int64_t parts, const Body& body) {
  const RoutePlan plan = RoutePlan::Of(routes.num_experts, routes.per_row, rows, decode);
  const auto num_shards = std::ssize(linear.PartOf(0));
  pool.ParallelFor(plan.num_groups(rows) * plan.num_experts * num_shards, [&](int64_t task) {
    const auto shard = static_cast<size_t>(task % num_shards);
    ForPairs(routes, plan, task / num_shards,
             [&](int64_t expert, int64_t first_pair, std::span<const int32_t> pairs) {
               const LinearShard& of_first = linear.PartOf(expert * parts)[shard];
               const auto block_rows = static_cast<size_t>(of_first.Kernel(decode).rows());
               for (size_t at = 0; at < pairs.size(); at += block_rows) {
                 const auto block = pairs.subspan(at, std::min(block_rows, pairs.size() - at));
                 const std::byte* const gathered = GatherRows(
                     linear, in, first_pair, block, pairs_of_row, static_cast<int64_t>(block_rows));
                 body(expert, shard, first_pair, block, gathered);
               }
             });
  });
}

// exp may be infinite: the quotient is then zero with the right sign.
float GateTimes(GatedActivation activation, float gate, float up) {
  float exponent = -gate;
  switch (activation) {
    case GatedActivation::kSilu:
      break;
    case GatedActivation::kGeluTanh:
      exponent = -2 * kGeluTanhSlope * (gate + kGeluTanhCubic * gate * gate * gate);
      break;
    case GatedActivation::kClampedSwiglu:
      gate = std::min(gate, kClampedSwigluLimit);
      up = std::clamp(up, -kClampedSwigluLimit, kClampedSwigluLimit) + 1;
      exponent = -kClampedSwigluSlope * gate;
      break;
  }
  return gate / (1.0f + std::exp(exponent)) * up;
}

// The bias of the column at `shard.first_col + i` of all parts.
float BiasOf(const CpuLinear& linear, const LinearShard& shard, int64_t i) {
  return linear.bias_.empty() ? 0 : linear.bias_[static_cast<size_t>(shard.first_col + i)];
}

// out[row] += the weighted rows of `products`.
void AddProducts(ThreadPool& pool, const GroupedLinearArgs& args) {
  const int64_t each = args.routes.per_row;
  ParallelRows(pool, args.out.rows, args.out.cols * each, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      float* const out = RowOf(args.out, row);
      for (int64_t col = 0; col < args.out.cols; ++col) {
        float sum = 0;
        for (int64_t pair = row * each; pair < (row + 1) * each; ++pair) {
          sum += args.routes.weights.device_data()[pair] * RowOf(args.products, pair)[col];
        }
        out[col] = args.accumulate ? out[col] + sum : sum;
      }
    }
  });
}

}  // namespace

absl::Status GroupedGatedLinear(CpuStream& stream, const GroupedGatedLinearArgs& args) {
  RETURN_IF_ERROR(CheckGroupedGatedLinear(args, DType::kF32));
  if (args.in.rows == 0) return absl::OkStatus();
  return stream.Launch([args](ThreadPool& pool) {
    const auto& linear = static_cast<const CpuLinear&>(*args.linear);
    ForBlocks(pool, linear, args.in, args.routes, args.in.rows, args.routes.per_row, args.decode, 2,
              [&](int64_t expert, size_t shard, int64_t first_pair, std::span<const int32_t> block,
                  const std::byte* rows) {
                const LinearShard& gate = linear.PartOf(2 * expert)[shard];
                const LinearShard& up = linear.PartOf(2 * expert + 1)[shard];
                const int64_t first_col = gate.first_col - linear.PartOf(2 * expert)[0].first_col;
                // The next run of the kernel would take the result's memory.
                const float* result = gate.Kernel(args.decode).Run(rows, gate.weights);
                for (const int32_t pair : block) {
                  std::copy_n(result, gate.cols, RowOf(args.out, first_pair + pair) + first_col);
                  result += gate.cols;
                }
                result = up.Kernel(args.decode).Run(rows, up.weights);
                for (const int32_t pair : block) {
                  float* const out = RowOf(args.out, first_pair + pair) + first_col;
                  for (int64_t i = 0; i < up.cols; ++i) {
                    out[i] = GateTimes(args.activation, out[i] + BiasOf(linear, gate, i),
                                       *result++ + BiasOf(linear, up, i));
                  }
                }
              });
  });
}

absl::Status GroupedLinear(CpuStream& stream, const GroupedLinearArgs& args) {
  RETURN_IF_ERROR(CheckGroupedLinear(args, DType::kF32));
  if (args.out.rows == 0) return absl::OkStatus();
  return stream.Launch([args](ThreadPool& pool) {
    const auto& linear = static_cast<const CpuLinear&>(*args.linear);
    ForBlocks(pool, linear, args.in, args.routes, args.out.rows, 1, args.decode, 1,
              [&](int64_t expert, size_t shard, int64_t first_pair, std::span<const int32_t> block,
                  const std::byte* rows) {
                const LinearShard& down = linear.PartOf(expert)[shard];
                const int64_t first_col = down.first_col - linear.PartOf(expert)[0].first_col;
                const float* result = down.Kernel(args.decode).Run(rows, down.weights);
                for (const int32_t pair : block) {
                  float* const out = RowOf(args.products, first_pair + pair) + first_col;
                  for (int64_t i = 0; i < down.cols; ++i) {
                    out[i] = *result++ + BiasOf(linear, down, i);
                  }
                }
              });
    AddProducts(pool, args);
  });
}

}  // namespace retroinfer::cpu
