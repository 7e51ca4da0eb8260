// Codes of tokens on the GPU (common/kv/token_code.h says what they are): what the writing of a
// segment does behind its index.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/index/cuda/member_order.h"
#include "gpu_worker/ops/index/write_segment.h"

namespace retroinfer::cuda {

// Enqueues the writing of a layer's codes into its extent and meta blocks, and of the clusters'
// first codes. Nothing where tokens have no codes.
//
// REQUIRES: the meta blocks have the layer's centroids when the stream comes to it; `order` is that
//           of args.assignment; the KV is bf16.
absl::Status WriteTokenCodes(CudaStream& stream, const WriteSegmentArgs& args,
                             const MemberOrder& order);

}  // namespace retroinfer::cuda
