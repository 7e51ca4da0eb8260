// The result is cut into blocks: rows of 16 (decode) or 64 (prefill), padded with zero rows, and
// 256 output features. One block is one MatmulKernel call on one thread. Since every block of a
// kind has the same size whatever the batch, so has the order of its sums, and a row's result
// depends on nothing but the row. Blocks this small also keep a thread's operands in its L2 cache.
#include "gpu_worker/ops/model/cpu/linear.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/cpu/convert.h"
#include "gpu_worker/ops/cpu/cpu_features.h"
#include "gpu_worker/ops/cpu/thread_scratch.h"
#include "gpu_worker/ops/model/cpu/cpu_linear.h"
#include "gpu_worker/ops/model/cpu/eight_bit_weights.h"
#include "gpu_worker/ops/model/linear_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/model/cpu/linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
//
#include "gpu_worker/ops/cpu/vector_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

template <class D>
HWY_INLINE void FinishAt(D d, const float* result, const float* bias, bool accumulate, float* out) {
  auto v = hn::LoadU(d, result);
  if (bias != nullptr) v = hn::Add(v, hn::LoadU(d, bias));
  if (accumulate) v = hn::Add(v, hn::LoadU(d, out));
  hn::StoreU(v, d, out);
}

// out = result (+ bias) (+ out); `bias` may be null.
void FinishRow(const float* result, const float* bias, bool accumulate, int64_t cols, float* out) {
  const FloatTag d;
  const hn::CappedTag<float, 1> d1;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= cols; i += lanes) {
    FinishAt(d, result + i, bias == nullptr ? nullptr : bias + i, accumulate, out + i);
  }
  for (; i < cols; ++i) {
    FinishAt(d1, result + i, bias == nullptr ? nullptr : bias + i, accumulate, out + i);
  }
}

}  // namespace
}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {

HWY_EXPORT(FinishRow);

namespace {

constexpr int64_t kDecodeRows = 16;
constexpr int64_t kPrefillRows = 64;
constexpr int64_t kBlockCols = 256;
constexpr int64_t kRowsAtATime = 512;  // bounds the memory for converted activations

// Rows of a weight as oneDNN takes them: where they lie, or converted to f32.
struct SourceRows {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
};

absl::StatusOr<SourceRows> RowsToPack(const LinearWeights& weights, int64_t first, int64_t count,
                                      DType dtype, std::vector<float>& converted) {
  const WeightView& weight = weights.weight;
  const bool is_code = weight.form.is_code();
  const bool rounds = RoundsNumbers(weights.keep) && !is_code;
  const DType stored = weight.form.number;
  const std::byte* const rows = weight.data + weight.form.Bytes(first, weight.cols);
  if (!is_code && !rounds && (stored == dtype || stored == DType::kF32)) {
    return SourceRows{rows, stored};
  }
  converted.resize(static_cast<size_t>(count * weight.cols));
  if (is_code) {
    RETURN_IF_ERROR(Dequantize(weights, first, count, converted.data()));
  } else {
    ConvertToF32(stored, rows, converted.data(), count * weight.cols);
  }
  if (rounds && weights.keep == KeptWeights::kInt4) {
    RETURN_IF_ERROR(RoundToInt4(count, weight.cols, converted.data()));
  } else if (rounds) {
    RETURN_IF_ERROR(RoundToFp8(count, weight.cols, converted.data()));
  }
  return SourceRows{reinterpret_cast<const std::byte*>(converted.data()), DType::kF32};
}

absl::Status PackShards(const LinearWeights& weights, Device& device, CpuLinear& linear) {
  const WeightView& weight = weights.weight;
  // A multiple of the cache line, so that each shard's part begins at one.
  auto padded = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
  size_t bytes = 0;
  bool has_decode = true;
  const int64_t part_rows = weight.rows / linear.num_parts_;
  for (int64_t first = 0; first < weight.rows;) {
    const int64_t left = part_rows - first % part_rows;
    LinearShard shard{.first_col = first, .cols = std::min(kBlockCols, left)};
    ASSIGN_OR_RETURN(shard.prefill,
                     MatmulKernel::Get(kPrefillRows, shard.cols, weight.cols, linear.dtype_));
    shard.decode = MatmulKernel::GetLike(shard.prefill, kDecodeRows);
    has_decode = has_decode && shard.decode->rows() == kDecodeRows;
    bytes += padded(shard.prefill->packed_bytes());
    first += shard.cols;
    linear.shards_.push_back(std::move(shard));
  }
  if (!has_decode) {  // All shards of a product share its blocks of rows.
    for (LinearShard& shard : linear.shards_) shard.decode = shard.prefill;
  }
  ASSIGN_OR_RETURN(linear.packed_, device.Allocate(bytes, MemoryPurpose::kWeights));
  std::byte* packed = linear.packed_.bytes().device_data();
  std::vector<float> converted;
  for (LinearShard& shard : linear.shards_) {
    ASSIGN_OR_RETURN(const SourceRows rows,
                     RowsToPack(weights, shard.first_col, shard.cols, linear.dtype_, converted));
    ASSIGN_OR_RETURN(shard.weights,
                     shard.prefill->Pack(rows.dtype, rows.data, weight.cols, packed));
    packed += padded(shard.prefill->packed_bytes());
  }
  return absl::OkStatus();
}

// Converts rows of `in` to `dtype`, dense, and appends zero rows up to `padded_rows`.
void PadRows(ThreadPool& pool, const MatrixView& in, DType dtype, int64_t padded_rows,
             std::byte* out) {
  const int64_t row_bytes = in.cols * static_cast<int64_t>(DTypeBytes(dtype));
  constexpr int64_t kRowsOfTask = 16;
  pool.ParallelFor((padded_rows + kRowsOfTask - 1) / kRowsOfTask, [&](int64_t task) {
    const int64_t end = std::min(padded_rows, (task + 1) * kRowsOfTask);
    for (int64_t row = task * kRowsOfTask; row < end; ++row) {
      if (row < in.rows) {
        ConvertFromF32(reinterpret_cast<const float*>(in.Rows(row, 1).data), dtype,
                       out + row * row_bytes, in.cols);
      } else {
        std::memset(out + row * row_bytes, 0, static_cast<size_t>(row_bytes));
      }
    }
  });
}

// Computes all shards for the rows of `in`.
void MultiplyRows(ThreadPool& pool, const CpuLinear& linear, const MatrixView& in,
                  const MatrixView& out, bool accumulate, bool decode) {
  const LinearShard& any = linear.shards_.front();
  const int64_t block_rows = any.Kernel(decode).rows();
  const int64_t num_blocks = (in.rows + block_rows - 1) / block_rows;
  const int64_t row_bytes = in.cols * static_cast<int64_t>(DTypeBytes(linear.dtype_));
  std::byte* rows = ThreadScratch(static_cast<size_t>(num_blocks * block_rows * row_bytes));
  PadRows(pool, in, linear.dtype_, num_blocks * block_rows, rows);
  const auto num_shards = static_cast<int64_t>(linear.shards_.size());
  pool.ParallelFor(num_shards * num_blocks, [&](int64_t i) {
    const LinearShard& shard = linear.shards_[static_cast<size_t>(i / num_blocks)];
    const int64_t first_row = i % num_blocks * block_rows;
    const float* result = shard.Kernel(decode).Run(rows + first_row * row_bytes, shard.weights);
    const float* bias = linear.bias_.empty() ? nullptr : linear.bias_.data() + shard.first_col;
    const int64_t num_rows = std::min(block_rows, in.rows - first_row);
    const MatrixView block = out.Rows(first_row, num_rows).Columns(shard.first_col, shard.cols);
    for (int64_t row = 0; row < num_rows; ++row) {
      HWY_DYNAMIC_DISPATCH(FinishRow)
      (result + row * shard.cols, bias, accumulate, shard.cols,
       reinterpret_cast<float*>(block.Rows(row, 1).data));
    }
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreparedLinear>> PrepareLinear(Device& device,
                                                              ComputePrecision precision,
                                                              const LinearWeights& weights) {
  const WeightView& weight = weights.weight;
  RETURN_IF_ERROR(CheckLinearWeights(weights));
  if (weights.keep == KeptWeights::kFp8Products) {
    return absl::InvalidArgumentError(
        "activations in fp8 need a GPU of compute capability 9.0, this is a CPU; use "
        "--activations-dtype bf16");
  }
  auto linear = std::make_unique<CpuLinear>();
  linear->in_features_ = weight.cols;
  linear->out_features_ = weight.rows;
  linear->num_parts_ = weights.num_parts;
  const bool bf16 = precision == ComputePrecision::kBf16 &&
                    (!weight.form.IsNumber(DType::kF32) || weights.keep != KeptWeights::kAsStored);
  linear->dtype_ = bf16 && HasAvx512Bf16() ? DType::kBf16 : DType::kF32;
  if (weights.bias.has_value()) {
    linear->bias_.resize(static_cast<size_t>(weight.rows));
    ConvertToF32(weights.bias->form.number, weights.bias->data, linear->bias_.data(), weight.rows);
  }
  RETURN_IF_ERROR(PackShards(weights, device, *linear));
  return linear;
}

absl::Status Linear(CpuStream& stream, const LinearArgs& args) {
  RETURN_IF_ERROR(CheckLinear(args, DType::kF32));
  RETURN_IF_ERROR(CheckDType("linear", "out", args.out, DType::kF32));
  return stream.Launch([args](ThreadPool& pool) {
    const auto& linear = static_cast<const CpuLinear&>(*args.linear);
    for (int64_t first = 0; first < args.in.rows; first += kRowsAtATime) {
      const int64_t rows = std::min(kRowsAtATime, args.in.rows - first);
      MultiplyRows(pool, linear, args.in.Rows(first, rows), args.out.Rows(first, rows),
                   args.accumulate, args.decode);
    }
  });
}

}  // namespace retroinfer::cpu
#endif  // HWY_ONCE
