// What the scheduler is told each round: the only place that looks at what the device, the
// background and the store have done. Nothing is decided here; what fails is part of a request's
// description (RequestDescription::has_failed).
//
// Threads: the engine's thread.
#pragma once

#include <cstddef>
#include <span>

#include "gpu_worker/engine/engine.h"
#include "gpu_worker/engine/live_request.h"
#include "gpu_worker/engine/segment_exchange.h"
#include "gpu_worker/engine/segment_store.h"
#include "gpu_worker/engine/tenant_directory.h"
#include "gpu_worker/executor/executor.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

class Observation {
 public:
  // What is looked at; all of it outlives the observation.
  struct Sources {
    Executor* executor = nullptr;
    const SegmentExchange* exchange = nullptr;
    const SegmentStore* store = nullptr;
    TenantDirectory* tenants = nullptr;
    EngineStats* counters = nullptr;  // counts memory_stalls
    const DraftModelRecord* draft_model = nullptr;
  };
  explicit Observation(const Sources& sources);

  // Describes the live requests, and what the executor has and has done since the last call. The
  // result is valid until the next call.
  const SchedulerInput& Observe(const LiveRequests& live, bool aborts_all, bool forgets_costs);
  // The requests' prompts have begun in the lane, in this order.
  void GroupBegan(size_t lane, std::span<LiveRequest* const> members);

 private:
  RequestDescription DescribePrompt(const LiveRequest& live) const;
  RequestDescription Describe(LiveRequest& live, const LiveRequests& all);
  void DescribeMemory(LiveRequest& live, RequestDescription& description);
  absl::Status DescribeProgress(LiveRequest& live, const LiveRequests& all,
                                RequestDescription& description);
  void DescribeModel(LiveRequest& live, int64_t most_more, RequestDescription& description) const;
  int64_t MostMoreGiven(const SequenceKv& kv, int64_t rows_of_run) const;
  absl::Status DescribeDecoding(LiveRequest& live, RequestDescription& description);

  const Sources sources_;
  Executor& executor_;
  SchedulerInput input_;
};

}  // namespace retroinfer
