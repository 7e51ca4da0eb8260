#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/model/embedding.h"

namespace retroinfer::cpu {

absl::Status Embedding(CpuStream& stream, const EmbeddingArgs& args);

}  // namespace retroinfer::cpu
