// Two kernels. A block of the first one has a run and a KV head: it sets the bits of all clusters
// of its rows in shared memory, writes them as a list, and leaves the bits in scratch. A block of
// the second one has a row and a KV head, and closes the gaps that shared clusters leave among
// those that the row estimates.
#include <cuda_runtime.h>

#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/index/cuda/share_retrieved.h"
#include "gpu_worker/ops/index/share_retrieved_check.h"

namespace retroinfer::cuda {
namespace {

constexpr int kJoinThreads = 1024;
constexpr int kKeepThreads = 256;

struct ShareParams {
  const RowRun* runs;
  int32_t num_kv_heads;
  int32_t num_words;  // of 32 bits
  int32_t* retrieved;
  int32_t* num_retrieved;
  int64_t max_retrieved;
  int32_t* estimated;
  int32_t* num_estimated;
  int64_t max_estimated;
  uint32_t* scratch;     // [runs, kv_heads, num_words]
  bool keeps_in_shared;  // the bits, while they are set
};

// blockIdx.x: KV head; .y: run.
__global__ void __launch_bounds__(kJoinThreads) JoinKernel(const ShareParams params) {
  using Scan = cub::BlockScan<int32_t, kJoinThreads>;
  extern __shared__ uint32_t shared_bits[];
  __shared__ typename Scan::TempStorage scan;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const RowRun run = params.runs[blockIdx.y];
  uint32_t* const kept =
      params.scratch + (int64_t{blockIdx.y} * params.num_kv_heads + blockIdx.x) * params.num_words;
  uint32_t* const bits = params.keeps_in_shared ? shared_bits : kept;
  for (int32_t i = thread; i < params.num_words; i += kJoinThreads) bits[i] = 0;
  __syncthreads();
  const int64_t first_list = int64_t{run.first_row} * params.num_kv_heads + blockIdx.x;
  for (int32_t row = thread / 32; row < run.num_rows; row += kJoinThreads / 32) {
    const int64_t list = first_list + int64_t{row} * params.num_kv_heads;
    const int32_t* clusters = params.retrieved + list * params.max_retrieved;
    const int32_t count = params.num_retrieved[list];
    for (int32_t i = thread % 32; i < count; i += 32) {
      const int32_t cluster = clusters[i];
      atomicOr(bits + cluster / 32, 1u << (cluster % 32));
    }
    __syncwarp();  // all lanes have read the count
    if (thread % 32 == 0) params.num_retrieved[list] = 0;
  }
  __syncthreads();
  int32_t* const out = params.retrieved + first_list * params.max_retrieved;
  int32_t written = 0;
  for (int32_t base = 0; base < params.num_words; base += kJoinThreads) {
    const int32_t i = base + thread;
    uint32_t word = i < params.num_words ? bits[i] : 0;
    if (i < params.num_words && params.keeps_in_shared) kept[i] = word;
    int32_t place = 0, all = 0;
    Scan(scan).ExclusiveSum(__popc(word), place, all);
    for (place += written; word != 0; word &= word - 1) out[place++] = 32 * i + __ffs(word) - 1;
    written += all;
    __syncthreads();  // before the scan's memory is used again
  }
  if (thread == 0) params.num_retrieved[first_list] = written;
}

// blockIdx.x: KV head; .y: row of a run.
__global__ void __launch_bounds__(kKeepThreads) KeepKernel(const ShareParams params) {
  using Scan = cub::BlockScan<int32_t, kKeepThreads>;
  __shared__ typename Scan::TempStorage scan;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto run_number = static_cast<int32_t>(blockIdx.y) / kMaxRowsOfRun;
  const auto row = static_cast<int32_t>(blockIdx.y) % kMaxRowsOfRun;
  const RowRun run = params.runs[run_number];
  if (row >= run.num_rows) return;
  const uint32_t* const bits =
      params.scratch + (int64_t{run_number} * params.num_kv_heads + blockIdx.x) * params.num_words;
  const int64_t list = int64_t{run.first_row + row} * params.num_kv_heads + blockIdx.x;
  int32_t* const clusters = params.estimated + list * params.max_estimated;
  const int32_t count = params.num_estimated[list];
  int32_t written = 0;
  for (int32_t base = 0; base < count; base += kKeepThreads) {
    const int32_t i = base + thread;
    const int32_t cluster = i < count ? clusters[i] : 0;
    const bool stays = i < count && (bits[cluster / 32] >> (cluster % 32) & 1) == 0;
    int32_t place = 0, all = 0;
    Scan(scan).ExclusiveSum(stays ? 1 : 0, place, all);  // no place is before one still to be read
    if (stays) clusters[written + place] = cluster;
    written += all;
    __syncthreads();
  }
  __syncthreads();  // all have read the count
  if (thread == 0) params.num_estimated[list] = written;
}

}  // namespace

absl::Status ShareRetrieved(CudaStream& stream, const ShareRetrievedArgs& args) {
  RETURN_IF_ERROR(CheckShareRetrieved(args));
  if (args.runs.empty()) return absl::OkStatus();
  constexpr size_t kMostShared = 32 * 1024;  // what every kernel may have beside the scan's
  const auto words = static_cast<int32_t>((args.max_clusters + 63) / 64 * 2);
  const size_t bytes = static_cast<size_t>(words) * sizeof(uint32_t);
  const ShareParams params = {.runs = args.runs.device_data(),
                              .num_kv_heads = args.num_kv_heads,
                              .num_words = words,
                              .retrieved = args.retrieved.device_data(),
                              .num_retrieved = args.num_retrieved.device_data(),
                              .max_retrieved = args.max_retrieved,
                              .estimated = args.estimated.device_data(),
                              .num_estimated = args.num_estimated.device_data(),
                              .max_estimated = args.max_estimated,
                              .scratch = reinterpret_cast<uint32_t*>(args.scratch.device_data()),
                              .keeps_in_shared = bytes <= kMostShared};
  const auto heads = static_cast<unsigned>(args.num_kv_heads);
  const auto runs = static_cast<unsigned>(args.runs.size());
  JoinKernel<<<dim3(heads, runs), kJoinThreads, params.keeps_in_shared ? bytes : 0, stream.get()>>>(
      params);
  KeepKernel<<<dim3(heads, runs * kMaxRowsOfRun), kKeepThreads, 0, stream.get()>>>(params);
  return CudaStatus(cudaGetLastError(), "launching share_retrieved");
}

}  // namespace retroinfer::cuda
