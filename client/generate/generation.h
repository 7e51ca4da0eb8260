// Runs one Generate call to its end.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/command/connection.h"
#include "client/command/interrupt.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::client {

// What one continuation gave.
struct Continuation {
  std::string text;
  std::vector<int32_t> token_ids;
  generation::v1::Finished finished;  // unset if the call failed
};

struct GenerationOutcome {
  grpc::Status status;
  std::vector<Continuation> continuations;  // n of them
};

// Called on the calling thread, as events arrive.
struct GenerationCallbacks {
  std::function<void(const generation::v1::PrefillProgress&)> on_progress;
  // Returns false if nobody can take the text: the call is cancelled.
  std::function<bool(int index, const std::string& text)> on_text;
};

// Names the request's context to balancers. A server that is unavailable before it has generated
// anything (it drains, loads, or died while it read the prompt) is asked again, --retries times, as
// long as something accepts connections at the address: a balancer there may choose another server.
// `interrupts` nullptr: nothing cancels the call; otherwise a signal does.
GenerationOutcome RunGeneration(const Connection& connection,
                                const generation::v1::GenerateRequest& request,
                                const GenerationCallbacks& callbacks, InterruptWatcher* interrupts);
// With the caller's context, which the connection has prepared: to cancel it in another way.
GenerationOutcome RunGeneration(const Connection& connection, grpc::ClientContext* context,
                                const generation::v1::GenerateRequest& request,
                                const GenerationCallbacks& callbacks);

// Whether the server ended the answer before the model or the request's limits did: a deadline, or
// a server that stops.
bool WasCut(const GenerationOutcome& outcome);

std::string FinishReasonText(generation::v1::FinishReason reason);  // "stop", "length", ...

// "stop, 16,384 prompt tokens, 12 generated, first token after 2.51 s, 20.0 ms/token, read 4.2% of
// the KV cache".
std::string DescribeFinish(const generation::v1::Finished& finished);

// The statistics and texts of all continuations as JSON, for programs.
std::string FinishJson(const generation::v1::GenerateRequest& request,
                       const GenerationOutcome& outcome);

}  // namespace retroinfer::client
