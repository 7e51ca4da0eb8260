#include "gpu_worker/measuring/synthetic/synthetic_prefill.h"

#include "common/status/status_macros.h"

namespace retroinfer {

absl::Status SyntheticPrefill::TakeLayer(SequenceKv& sequence, uint32_t layer,
                                         const LayerKv& /*kv*/) {
  if (layer == 0) {
    sequence.prompt_tokens += num_tokens_;
    sequence.total_tokens += num_tokens_;
    sequence.part.end = sequence.prompt_tokens;
  }
  ASSIGN_OR_RETURN(const LayerKv synthetic,
                   context_.MakeLayer(compute_, layer, sequence.prompt_tokens));
  RETURN_IF_ERROR(ForwardingPolicy::TakeLayer(sequence, layer, synthetic));
  return context_.ReadBy(background_);
}

}  // namespace retroinfer
