// How the heads of a layer attend, as the model has it.
#pragma once

#include <cstdint>

#include "gpu_worker/device/device_span.h"

namespace retroinfer {

struct AttentionForm {
  float scale = 0;     // scores are queries times keys, times this
  int32_t window = 0;  // newest tokens that a token sees, itself included; 0: all of them
  // A logit of each query head that takes part in the softmax and has no value: [query_heads].
  // Empty: there is none.
  DeviceSpan<const float> sinks = {};
};

}  // namespace retroinfer
