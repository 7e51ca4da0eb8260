// The events of one Generate call that its client has not read yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "gpu_worker/engine/generation.h"
#include "retroinfer/generation/v1/generation.pb.h"
#include "text/tokenizer/tokenizer.h"

namespace retroinfer {

// Events wait here while an earlier one is being written. What can be merged is merged, so a slow
// client gets fewer and larger events: output grows an event that is still waiting until that has
// kMergeBytes, progress replaces progress. Nothing is lost.
//
// Threads: one at a time.
class ResponseQueue {
 public:
  static constexpr size_t kMergeBytes = 16 << 10;  // far below gRPC's default limit of 4 MiB

  struct Settings {
    std::string request_id;
    int64_t prompt_tokens = 0;
    bool want_progress = false;
    bool want_logprobs = false;
    const Tokenizer* tokenizer = nullptr;  // for the bytes of tokens with logprobs; null: none
    int32_t first_token = 0;               // of the prompt: nothing is measured of it
  };
  explicit ResponseQueue(Settings settings) : settings_(std::move(settings)) {}

  // `index`: of the continuation.
  void AddProgress(int index, const PrefillProgress& progress);
  // `cached_tokens`, `completion_tokens`: running counts, this delta included.
  void AddOutput(int index, const OutputDelta& delta, int64_t cached_tokens,
                 int64_t completion_tokens);
  // Scores of the prompt from its second token on, in order; the first one is put before them.
  void AddPrompt(const OutputDelta& delta);
  // REQUIRES: result.reason is not kError.
  void AddFinished(int index, const GenerationResult& result);

  // Moves the oldest event to `*event`; returns false if there is none.
  bool Pop(generation::v1::GenerateResponse* event);

  void Clear();
  size_t bytes() const { return bytes_; }  // about what the waiting events take on the wire

 private:
  struct Entry {
    generation::v1::GenerateResponse event;
    size_t bytes;
  };

  Entry* LastOf(int index);
  Entry& Append(int index);

  Settings settings_;
  std::deque<Entry> entries_;
  size_t bytes_ = 0;
  int64_t prompt_tokens_told_ = 0;
};

}  // namespace retroinfer
