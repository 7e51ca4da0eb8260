// How prompts are computed by default, checked before anything is loaded.
#pragma once

#include "absl/status/status.h"
#include "gpu_worker/kv/attention_settings.h"
#include "gpu_worker/ops/attention/attention_ops.h"

namespace retroinfer {

// Returns: FAILED_PRECONDITION if the backend does not compute prompts so.
inline absl::Status CheckDefaultPrefill(const AttentionSettings& attention,
                                        const AttentionOps& ops) {
  if (attention.prefill != PrefillKind::kSparse || ops.ChoosesBlocks()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "--prefill sparse is not available on this backend: use --device cpu, or --prefill exact");
}

}  // namespace retroinfer
