// What a request that says nothing about sampling gets.
#pragma once

#include "gpu_worker/engine/generation.h"
#include "gpu_worker/model/generation_config.h"

namespace retroinfer {

// The values of generation_config.json, as generation.proto promises: with or without do_sample, as
// servers of this kind do, but greedy if the file says `"do_sample": false`. (The library that the
// file is made for is greedy without do_sample, too, and ignores the temperature then.)
SamplingParams DefaultSampling(const GenerationConfig& generation);

}  // namespace retroinfer
