// Copies bound by their bytes. A dense block is a run of pages for each (layer, head); see
// dense_pool.h. Token `place` of a block is place % tokens_per_page of page place /
// tokens_per_page: keys of a page first, then its values.
#include "gpu_worker/ops/attention/cuda/layer_kv.h"
#include "gpu_worker/ops/attention/layer_kv_check.h"
#include "gpu_worker/ops/cuda/cuda_kv_format.h"
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/eight_bit_vector.cuh"
#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/cuda/launch.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 256;

// A layer of the dense pool.
struct PoolLayer {
  std::byte* data;  // of the layer's first head in block 0
  int64_t block_bytes;
  int64_t run_bytes;  // of a head
  int32_t tokens_per_page;
  int32_t vector_bytes;  // of a key, as pages have it
};

PoolLayer LayerOf(const DensePoolView& pool, uint32_t layer) {
  const KvGeometry& geometry = pool.geometry;
  return {pool.Run(0, layer, 0), static_cast<int64_t>(pool.block_bytes),
          static_cast<int64_t>(DensePoolView::RunBytes(geometry)),
          static_cast<int32_t>(geometry.tokens_per_page()),
          static_cast<int32_t>(geometry.page().vector_bytes)};
}

// The key of a token; its value lies tokens_per_page * vector_bytes behind it.
__device__ std::byte* KeyInBlock(const PoolLayer& pool, DenseBlockId block, int64_t head,
                                 int32_t place) {
  return pool.data + block * pool.block_bytes + head * pool.run_bytes +
         place / pool.tokens_per_page * int64_t{kPageBytes} +
         place % pool.tokens_per_page * int64_t{pool.vector_bytes};
}

struct StoreLaunch {
  const __nv_bfloat16* keys;
  int64_t key_stride;
  const __nv_bfloat16* values;
  int64_t value_stride;
  int64_t cols;
  int64_t first_token;
  LayerKv out;
};

// One block a token.
__global__ void __launch_bounds__(kThreads) StoreLayerKvKernel(const StoreLaunch launch) {
  const LayerKv& out = launch.out;
  const int64_t row = blockIdx.x;
  const int64_t token = launch.first_token + row;
  for (int64_t i = threadIdx.x; i < launch.cols; i += kThreads) {
    const int64_t at = (i / out.head_dim * out.capacity + token) * out.head_dim + i % out.head_dim;
    StoreElement(out.keys, out.dtype, at,
                 __bfloat162float(launch.keys[row * launch.key_stride + i]));
    StoreElement(out.values, out.dtype, at,
                 __bfloat162float(launch.values[row * launch.value_stride + i]));
  }
}

// Eight numbers of a row of activations. `aligned`: they begin at a multiple of 16 bytes.
__device__ Bf16x8 LoadActivations(const __nv_bfloat16* row, int64_t at, bool aligned) {
  if (aligned) return *reinterpret_cast<const Bf16x8*>(row + at);
  Bf16x8 numbers;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    numbers.pair[i] = __halves2bfloat162(row[at + 2 * i], row[at + 2 * i + 1]);
  }
  return numbers;
}

// StoreLayerKvKernel for vectors that are rounded to what eight bits can hold. Eight numbers a
// thread: those of a row's keys, then of its values, then of the next row's.
__global__ void __launch_bounds__(kThreads)
    StoreRoundedKernel(const StoreLaunch launch, int64_t rows, bool aligned) {
  const LayerKv& out = launch.out;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = thread / (launch.cols / 4);
  const int64_t i = thread % (launch.cols / 4) * 8;
  const bool is_there = row < rows;  // lanes that are not still have a part in their warp's vectors
  const bool is_value = i >= launch.cols;
  const int64_t col = is_value ? i - launch.cols : i;
  Bf16x8 numbers = {};
  if (is_there) {
    numbers = is_value ? LoadActivations(launch.values + row * launch.value_stride, col, aligned)
                       : LoadActivations(launch.keys + row * launch.key_stride, col, aligned);
  }
  const auto head_dim = static_cast<int32_t>(out.head_dim);
  const auto place = static_cast<int32_t>(col % head_dim);
  const int32_t code = CodeOfLanes(LargestBits(numbers), head_dim / 8);
  if (!is_there) return;
  const int64_t vector = col / head_dim * out.capacity + launch.first_token + row;
  auto* const to = reinterpret_cast<__nv_bfloat16*>(is_value ? out.values : out.keys) +
                   vector * head_dim + place;
  *reinterpret_cast<Bf16x8*>(to) = DecodeEight(EncodeEight(numbers, place, code), place, code);
}

// Copies between a layer's KV and blocks, 16 bytes a thread: blockIdx.x is the token, blockIdx.y
// the head. `kFill` writes the blocks, else they are read.
template <bool kFill>
__global__ void __launch_bounds__(32)
    CopyDenseKernel(std::byte* keys, std::byte* values, int64_t capacity, int64_t first_token,
                    PoolLayer pool, const DenseBlockId* block_ids) {
  const int64_t token = blockIdx.x;
  const int64_t head = blockIdx.y;
  const auto place = static_cast<int32_t>(token % kDenseBlockTokens);
  std::byte* const dense_key = KeyInBlock(pool, block_ids[token / kDenseBlockTokens], head, place);
  std::byte* const dense_value = dense_key + pool.tokens_per_page * int64_t{pool.vector_bytes};
  const int64_t at = (head * capacity + first_token + token) * pool.vector_bytes;
  for (int32_t i = static_cast<int32_t>(threadIdx.x) * 16; i < pool.vector_bytes; i += 32 * 16) {
    auto* const key = reinterpret_cast<int4*>(keys + at + i);
    auto* const value = reinterpret_cast<int4*>(values + at + i);
    if constexpr (kFill) {
      *reinterpret_cast<int4*>(dense_key + i) = *key;
      *reinterpret_cast<int4*>(dense_value + i) = *value;
    } else {
      *key = *reinterpret_cast<const int4*>(dense_key + i);
      *value = *reinterpret_cast<const int4*>(dense_value + i);
    }
  }
}

// Threads of a block that has a key and a value, eight numbers a thread: a warp, or two for vectors
// of 256.
constexpr int kMaxTokenThreads = 64;
unsigned TokenThreads(uint32_t head_dim) { return head_dim > 128 ? 64 : 32; }

// The same with blocks in eight bits, in TokenThreads threads. With head_dim 64 the warp's upper
// half does what its lower half does.
template <bool kFill>
__global__ void __launch_bounds__(kMaxTokenThreads)
    CopyEightBitsKernel(std::byte* keys, std::byte* values, int64_t capacity, int64_t first_token,
                        PoolLayer pool, const DenseBlockId* block_ids) {
  const int64_t token = blockIdx.x;
  const int64_t head = blockIdx.y;
  const int32_t lanes = pool.vector_bytes / 8;  // of a vector
  const bool is_value = static_cast<int32_t>(threadIdx.x) / lanes % 2 != 0;
  const int32_t place = static_cast<int32_t>(threadIdx.x) % lanes * 8;
  std::byte* const dense = KeyInBlock(pool, block_ids[token / kDenseBlockTokens], head,
                                      static_cast<int32_t>(token % kDenseBlockTokens)) +
                           (is_value ? pool.tokens_per_page * int64_t{pool.vector_bytes} : 0);
  const int64_t row = head * capacity + first_token + token;
  auto* const numbers = reinterpret_cast<Bf16x8*>(
      reinterpret_cast<__nv_bfloat16*>(is_value ? values : keys) + row * pool.vector_bytes + place);
  auto* const elements = reinterpret_cast<uint2*>(dense + place);
  if constexpr (kFill) {
    const Bf16x8 own = *numbers;
    *elements = EncodeEight(own, place, CodeOfLanes(LargestBits(own), lanes));
  } else {
    *numbers = DecodeEight(*elements, place, CodeOfFirst(*reinterpret_cast<const uint2*>(dense)));
  }
}

struct AppendLaunch {
  const __nv_bfloat16* keys;
  int64_t key_stride;
  const __nv_bfloat16* values;
  int64_t value_stride;
  int32_t head_dim;  // one of kHeadDims
  DType dtype;
  PoolLayer pool;
  const DenseBlockId* block_ids;
  const int32_t* place_in_block;
};

// blockIdx.x: sequence; blockIdx.y: head. A thread converts, or copies, eight elements of the key
// or of the value.
template <bool kCopy>
__global__ void __launch_bounds__(kMaxTokenThreads) AppendDenseKernel(const AppendLaunch launch) {
  const int64_t row = blockIdx.x;
  const PoolLayer& pool = launch.pool;
  AllowNextKernel();
  AwaitLastKernel();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t pieces = launch.head_dim / 8;
  if (thread >= 2 * pieces) return;
  const bool is_value = thread >= pieces;
  const int32_t at = (thread - (is_value ? pieces : 0)) * 8;
  std::byte* const key =
      KeyInBlock(pool, launch.block_ids[row], blockIdx.y, launch.place_in_block[row]);
  std::byte* const to = is_value ? key + pool.tokens_per_page * int64_t{pool.vector_bytes} : key;
  const __nv_bfloat16* const from = (is_value ? launch.values + row * launch.value_stride
                                              : launch.keys + row * launch.key_stride) +
                                    int64_t{blockIdx.y} * launch.head_dim + at;
  if constexpr (kCopy) {
    *reinterpret_cast<int4*>(to + at * 2) = *reinterpret_cast<const int4*>(from);
  } else {
    for (int32_t i = 0; i < 8; ++i) {
      StoreElement(to, launch.dtype, at + i, __bfloat162float(from[i]));
    }
  }
}

// The same for blocks in eight bits. With head_dim 64 the warp's upper half does what its lower
// half does.
template <bool kAligned>
__global__ void __launch_bounds__(kMaxTokenThreads)
    AppendEightBitsKernel(const AppendLaunch launch) {
  const int64_t row = blockIdx.x;
  const PoolLayer& pool = launch.pool;
  AllowNextKernel();
  AwaitLastKernel();
  const int32_t lanes = launch.head_dim / 8;  // of a vector
  const bool is_value = static_cast<int32_t>(threadIdx.x) / lanes % 2 != 0;
  const int32_t place = static_cast<int32_t>(threadIdx.x) % lanes * 8;
  const __nv_bfloat16* const from =
      is_value ? launch.values + row * launch.value_stride : launch.keys + row * launch.key_stride;
  const Bf16x8 numbers =
      LoadActivations(from, int64_t{blockIdx.y} * launch.head_dim + place, kAligned);
  std::byte* const key =
      KeyInBlock(pool, launch.block_ids[row], blockIdx.y, launch.place_in_block[row]);
  std::byte* const to = is_value ? key + pool.tokens_per_page * int64_t{pool.vector_bytes} : key;
  *reinterpret_cast<uint2*>(to + place) =
      EncodeEight(numbers, place, CodeOfLanes(LargestBits(numbers), lanes));
}

template <bool kFill>
absl::Status CopyDense(CudaStream& stream, const LayerKv& kv, int64_t first_token,
                       int64_t num_tokens, const DensePoolView& pool, uint32_t layer,
                       DeviceSpan<const DenseBlockId> block_ids) {
  if (num_tokens == 0) return absl::OkStatus();
  const dim3 grid(static_cast<unsigned>(num_tokens), kv.num_kv_heads);
  const bool eight_bits = pool.geometry.format.token == kEightBitTokens;
  const auto kernel = eight_bits ? &CopyEightBitsKernel<kFill> : &CopyDenseKernel<kFill>;
  const unsigned threads = eight_bits ? TokenThreads(pool.geometry.head_dim) : 32;
  kernel<<<grid, threads, 0, stream.get()>>>(kv.keys, kv.values, kv.capacity, first_token,
                                             LayerOf(pool, layer), block_ids.device_data());
  return LaunchStatus(kFill ? "launching fill_dense" : "launching read_dense");
}

}  // namespace

absl::Status StoreLayerKv(CudaStream& stream, const StoreLayerKvArgs& args) {
  RETURN_IF_ERROR(CheckStoreLayerKv(args, DType::kBf16));
  RETURN_IF_ERROR(CheckPromptType(kKvElementTypes, "store_layer_kv", args.out.dtype));
  if (args.keys.rows == 0) return absl::OkStatus();
  const StoreLaunch launch = {reinterpret_cast<const __nv_bfloat16*>(args.keys.data),
                              args.keys.row_stride,
                              reinterpret_cast<const __nv_bfloat16*>(args.values.data),
                              args.values.row_stride,
                              args.keys.cols,
                              args.first_token,
                              args.out};
  if (args.out.rounds_to_eight_bits) {
    const int64_t threads = args.keys.rows * (args.keys.cols / 4);
    StoreRoundedKernel<<<static_cast<unsigned>(DivideUp(threads, kThreads)), kThreads, 0,
                         stream.get()>>>(launch, args.keys.rows,
                                         HasAlignedRows(args.keys) && HasAlignedRows(args.values));
  } else {
    StoreLayerKvKernel<<<static_cast<unsigned>(args.keys.rows), kThreads, 0, stream.get()>>>(
        launch);
  }
  return LaunchStatus("launching store_layer_kv");
}

absl::Status FillDense(CudaStream& stream, const FillDenseArgs& args) {
  RETURN_IF_ERROR(CheckFillDense(args));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  return CopyDense<true>(stream, args.in, args.first_token, args.num_tokens, args.pool, args.layer,
                         args.block_ids);
}

absl::Status ReadDense(CudaStream& stream, const ReadDenseArgs& args) {
  RETURN_IF_ERROR(CheckReadDense(args));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  return CopyDense<false>(stream, args.out, args.first_token, args.num_tokens, args.pool,
                          args.layer, args.block_ids);
}

absl::Status AppendDense(CudaStream& stream, const AppendDenseArgs& args) {
  RETURN_IF_ERROR(CheckAppendDense(args, DType::kBf16));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  if (args.keys.rows == 0) return absl::OkStatus();
  const KvGeometry& geometry = args.pool.geometry;
  const DType element = geometry.format.token.element;
  const AppendLaunch launch = {reinterpret_cast<const __nv_bfloat16*>(args.keys.data),
                               args.keys.row_stride,
                               reinterpret_cast<const __nv_bfloat16*>(args.values.data),
                               args.values.row_stride,
                               static_cast<int32_t>(geometry.head_dim),
                               element,
                               LayerOf(args.pool, args.layer),
                               args.block_ids.device_data(),
                               args.place_in_block.device_data()};
  const bool aligned = HasAlignedRows(args.keys) && HasAlignedRows(args.values);
  auto kernel =
      aligned && element == DType::kBf16 ? &AppendDenseKernel<true> : &AppendDenseKernel<false>;
  if (geometry.format.token == kEightBitTokens) {
    kernel = aligned ? &AppendEightBitsKernel<true> : &AppendEightBitsKernel<false>;
  }
  const dim3 grid(static_cast<unsigned>(args.keys.rows), geometry.num_kv_heads);
  return CudaStatus(
      LaunchDependent(
          {.grid = grid, .block = dim3(TokenThreads(geometry.head_dim)), .stream = stream.get()},
          kernel, launch),
      "launching append_dense");
}

}  // namespace retroinfer::cuda
