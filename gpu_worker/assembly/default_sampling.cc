#include "gpu_worker/assembly/default_sampling.h"

namespace retroinfer {

SamplingParams DefaultSampling(const GenerationConfig& generation) {
  SamplingParams sampling;
  sampling.temperature = generation.temperature.value_or(sampling.temperature);
  if (!generation.do_sample.value_or(true)) sampling.temperature = 0;
  sampling.top_p = generation.top_p.value_or(sampling.top_p);
  sampling.top_k = generation.top_k.value_or(sampling.top_k);
  sampling.min_p = generation.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = generation.repetition_penalty.value_or(sampling.repetition_penalty);
  return sampling;
}

}  // namespace retroinfer
