// How many blocks of device memory one request should have now, and how many it may ever need: it
// begins with those of its prompt and of the first tokens behind it, and asks for more while it
// still has room for some.
//
// Lengths are tokens with KV behind the prompt.
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
  // Room that a request has when it begins or comes back.
  static constexpr int64_t kAtFirst = 256;
  // With less room than this it asks for twice as much.
  static constexpr int64_t kAhead = 64;

  BlockDemand() = default;
  // `takes_all`: all that it may ever need when it begins, so that it never asks. The policy
  // outlives the demand.
  BlockDemand(const AttentionPolicy& policy, const AttentionSettings& settings,
              int64_t prompt_tokens, int64_t max_tokens, bool takes_all);

  // The most that it will hold at a time, from the length on that it had at the last of the calls
  // below.
  const KvBlocks& most() const { return most_; }
  // What it should hold now; more than it does if it asks.
  const KvBlocks& wanted() const { return wanted_; }
  // Tokens that it may take with what it holds.
  int64_t Room(int64_t length) const { return reach_ - length; }

  // It holds nothing, and will begin or come back at this length.
  void Leave(int64_t length);
  // It holds what was wanted.
  void Take() { reach_ = wanted_reach_; }
  // It has come to this length. Returns whether that changes what it may need or wants.
  bool Advance(int64_t length);

 private:
  void Want(int64_t length, int64_t reach);

  const AttentionPolicy* policy_ = nullptr;
  AttentionSettings settings_;
  int64_t prompt_tokens_ = 0;
  int64_t max_tokens_ = 0;
  bool takes_all_ = false;
  KvBlocks most_, wanted_;
  int64_t reach_ = 0;         // with what it holds
  int64_t wanted_reach_ = 0;  // with wanted_
};

}  // namespace retroinfer
