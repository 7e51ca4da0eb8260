// Lets answers grow whose length nobody has named: reserves extents and device memory for the next
// stretch of such an answer before its tokens come, so that a short answer holds no memory for the
// whole of the model's length.
//
// An answer for which the arena has no room, and gets none until its tokens come, ends where its
// memory ends, with FinishReason::kLength.
//
// Threads: the engine's thread.
#pragma once

#include <cstdint>

#include "gpu_worker/engine/generation.h"
#include "gpu_worker/engine/live_request.h"
#include "gpu_worker/engine/segment_exchange.h"
#include "gpu_worker/executor/command_runner.h"

namespace retroinfer {

class AnswerGrowth {
 public:
  static constexpr int64_t kStretch = 2048;  // tokens
  // So many tokens before the end of a stretch the next one is reserved: some seconds of decoding,
  // in which the store can evict and others may end.
  static constexpr int64_t kAhead = 512;

  // The most tokens that the request generates with what is reserved when it begins.
  static int64_t TokensAtFirst(const GenerationRequest& request);

  // Runner and exchange outlive this.
  AnswerGrowth(CommandRunner& commands, SegmentExchange& exchange, uint32_t arena_pages)
      : commands_(commands), exchange_(exchange), arena_pages_(arena_pages) {}

  // Reserves for the answers that are near the end of their stretch, and takes what the store has
  // granted. Once a round, between two steps. What the store answers wrongly fails the request
  // (LiveRequest::failure).
  void Tend(LiveRequests& live);

 private:
  void Tend(LiveRequest& live);
  void Ask(LiveRequest& live, int64_t total_tokens);
  void TakeAnswer(LiveRequest& live);
  void GrowTo(LiveRequest& live, int64_t total_tokens);

  CommandRunner& commands_;
  SegmentExchange& exchange_;
  const uint32_t arena_pages_;
};

}  // namespace retroinfer
