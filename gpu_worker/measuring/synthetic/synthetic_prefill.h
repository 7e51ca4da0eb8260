// A policy that answers for another one, but puts a synthetic context before each prompt: its KV
// goes through the normal construction of segments, as if it had been prefilled. For measuring
// decode steps of a server at 120K or 1M tokens without the wait.
//
// The engine knows of the request's own tokens only. The sequence grows when its first layer is
// taken over; from there on positions, segments and steady zone are those of the long context. The
// prompt's own keys are replaced by synthetic ones, too: they were computed at other positions.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/measuring/synthetic/forwarding_policy.h"
#include "gpu_worker/measuring/synthetic/synthetic_context.h"

namespace retroinfer {

class SyntheticPrefill final : public ForwardingPolicy {
 public:
  // `num_tokens` come before every prompt. `background` is the stream on which `policy` may read
  // keys and values after TakeLayer. Streams, policy and context must outlive it; several policies
  // may share the context.
  SyntheticPrefill(Stream& compute, Stream& background, AttentionPolicy& policy,
                   SyntheticContext& context, int64_t num_tokens)
      : ForwardingPolicy(policy),
        compute_(compute),
        background_(background),
        context_(context),
        num_tokens_(num_tokens) {}

  KvNeed Need(const AttentionSettings& settings, int64_t prompt_tokens,
              int64_t total_tokens) const override {
    return ForwardingPolicy::Need(settings, num_tokens_ + prompt_tokens,
                                  num_tokens_ + total_tokens);
  }
  KvBlocks NeedWhile(const AttentionSettings& settings, const KvGrowth& growth) const override {
    return ForwardingPolicy::NeedWhile(settings,
                                       {.prompt_tokens = num_tokens_ + growth.prompt_tokens,
                                        .total_tokens = num_tokens_ + growth.total_tokens,
                                        .from = num_tokens_ + growth.from,
                                        .to = num_tokens_ + growth.to});
  }
  bool CanRewind(const AttentionSettings& settings, int64_t prompt_tokens,
                 int64_t total_tokens) const override {
    return ForwardingPolicy::CanRewind(settings, num_tokens_ + prompt_tokens,
                                       num_tokens_ + total_tokens);
  }
  // REQUIRES: the sequence's prompt is named nowhere: its segments are not what its tokens say.
  absl::Status TakeLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) override;

 private:
  Stream& compute_;
  Stream& background_;
  SyntheticContext& context_;
  const int64_t num_tokens_;
};

}  // namespace retroinfer
