// Makes the drafts of all requests that decode, before the engine looks at what the next step may
// have: a bounded part of a round, however long the prompts are.
#pragma once

#include "gpu_worker/engine/live_request.h"

namespace retroinfer {

// Threads: the engine's thread.
void TendDrafts(const LiveRequests& live);

}  // namespace retroinfer
