// Makes the drafts of all requests that decode, before the engine looks at what the next step may
// have: a bounded part of a round, however long the prompts are. Drafts of a draft model are made
// when a plan has rows for them.
#pragma once

#include "gpu_worker/engine/live_request.h"
#include "gpu_worker/executor/draft_model.h"

namespace retroinfer {

// The draft model, null where there is none, lets go of texts that nobody decodes.
//
// Threads: the engine's thread.
void TendDrafts(const LiveRequests& live, DraftModel* model = nullptr);

}  // namespace retroinfer
