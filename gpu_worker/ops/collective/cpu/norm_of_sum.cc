// The operations that it stands for: on a CPU nothing is won by joining them.
#include "gpu_worker/ops/collective/cpu/norm_of_sum.h"

#include "common/status/status_macros.h"
#include "gpu_worker/ops/collective/cpu/all_reduce.h"
#include "gpu_worker/ops/collective/norm_of_sum_check.h"
#include "gpu_worker/ops/model/cpu/rms_norm.h"

namespace retroinfer::cpu {

absl::Status NormOfSum(CpuStream& stream, RankMemory* ranks, const NormOfSumArgs& args) {
  RETURN_IF_ERROR(CheckNormOfSum(args, DType::kF32));
  RETURN_IF_ERROR(AllReduce(stream, ranks, args.sum));
  for (const RmsNormArgs& norm : args.norms) RETURN_IF_ERROR(RmsNorm(stream, norm));
  return absl::OkStatus();
}

}  // namespace retroinfer::cpu
