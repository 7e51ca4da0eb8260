// Says what clients are told of what their requests have generated or measured, how far their
// prompts are, and how they ended; the output thread tells them.
//
// OnFinish is called in End() and nowhere else; End() makes the phase kEnded, so it runs once for a
// request.
//
// Threads: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/engine/engine_stats_board.h"
#include "gpu_worker/engine/inbox.h"
#include "gpu_worker/engine/live_request.h"
#include "gpu_worker/engine/output_thread.h"
#include "gpu_worker/engine/segment_exchange.h"
#include "gpu_worker/engine/segment_store.h"
#include "gpu_worker/executor/command_result.h"
#include "gpu_worker/executor/step_command.h"

namespace retroinfer {

class OutputDelivery {
 public:
  // All of it outlives the delivery.
  struct Parts {
    const SegmentStore* store = nullptr;
    SegmentExchange* exchange = nullptr;
    std::function<void(StepCommand)> carry_out;  // has the executor carry it out
    Inbox* inbox = nullptr;
    OutputThread* output = nullptr;
    EngineStatsBoard* stats = nullptr;
    std::function<void()> publish;  // shows other threads the statistics of now
  };
  explicit OutputDelivery(Parts parts)
      : parts_(std::move(parts)), counters_(parts_.stats->counters()) {}

  // Tells how many tokens of the prompt are read, if the client wants to know.
  void ReportProgress(LiveRequest& live, int64_t processed_tokens);
  // Tells measured tokens of the prompt.
  void EmitPrompt(LiveRequest& live, std::span<const OutputToken> measured);
  // Tells what follows the prompt, once nothing of the prompt is left to measure.
  // REQUIRES: LiveRequest::first, or the first tokens of LiveRequest::forced, are there.
  void EmitFirst(LiveRequest& live);
  // Tells a token that a decode step has drawn, or measured.
  void Emit(LiveRequest& live, const DrawnToken& token);
  // Ends the request, unless it has ended: from now on only its memory is left.
  void End(LiveRequest& live, FinishReason reason, absl::Status status = absl::OkStatus());
  // Hands what was said since the last call to the output thread.
  void Flush() { parts_.output->Post(events_); }

 private:
  void EmitDrawn(LiveRequest& live, const DrawnToken& drawn);
  void EmitMeasured(LiveRequest& live, const OutputToken& token);
  void EmitDelta(LiveRequest& live);
  void EndBecauseMemoryWasTaken(LiveRequest& live);

  const Parts parts_;
  EngineStats& counters_;
  std::vector<ClientEvent> events_;  // since Flush()
};

}  // namespace retroinfer
