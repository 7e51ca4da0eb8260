// How many blocks of device memory one request should hold now, and how many it may hold at most: a
// request begins with the blocks of its prompt and of the first kAtFirst tokens behind the prompt,
// and asks for more blocks while it still has some free.
//
// A length is the number of tokens with KV behind the prompt.
//
// Threads: one at a time.
#pragma once

#include <cstdint>

#include "gpu_worker/attention/attention_policy.h"
#include "gpu_worker/kv/attention_settings.h"
#include "gpu_worker/kv/sequence_kv.h"

namespace retroinfer {

class BlockDemand {
 public:
  // Tokens behind the current length whose blocks a request gets when it begins or is resumed.
  static constexpr int64_t kAtFirst = 256;
  // A request with fewer free tokens than this asks for blocks of twice as many.
  static constexpr int64_t kAhead = 64;

  BlockDemand() = default;
  // `takes_all`: the request gets all blocks that it may ever need when it begins, and never asks.
  // `policy` outlives the demand.
  BlockDemand(const AttentionPolicy& policy, const AttentionSettings& settings,
              int64_t prompt_tokens, int64_t max_tokens, bool takes_all);

  // Upper bound of the blocks that the request holds at a time, from the length of the last call of
  // OnReleased() or of OnGrown() that returned true, to its end.
  const KvBlocks& peak() const { return peak_; }
  // Blocks that the request should hold now. A request that holds fewer asks for the difference.
  const KvBlocks& target() const { return target_; }
  // Tokens that the request may still generate with the blocks that it holds.
  int64_t FreeTokens(int64_t length) const { return reach_ - length; }

  // The request, of `length`, may generate up to `max_tokens`, which has become more.
  void Lengthen(int64_t length, int64_t max_tokens);
  // The request has given its blocks back, and will begin or be resumed at `length`.
  void OnReleased(int64_t length);
  // The request holds target() blocks.
  void OnGranted() { reach_ = target_reach_; }
  // The request has grown to `length`. Returns whether peak() and target() have changed.
  bool OnGrown(int64_t length);

 private:
  // Sets peak_ and target_ for a request of `length` that is to reach `reach`.
  void SetTarget(int64_t length, int64_t reach);

  const AttentionPolicy* policy_ = nullptr;
  AttentionSettings settings_;
  int64_t prompt_tokens_ = 0;
  int64_t max_tokens_ = 0;
  bool takes_all_ = false;
  KvBlocks peak_, target_;
  int64_t reach_ = 0;         // length that the blocks held suffice for
  int64_t target_reach_ = 0;  // length that target_ suffices for
};

}  // namespace retroinfer
