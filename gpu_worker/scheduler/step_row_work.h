// What a row of a decode step adds to the step's work. Rows of tails are work of their own.
#pragma once

#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/work.h"

namespace retroinfer {

// Whether the next tokens of a request that decodes are those of its tail.
inline bool FeedsTail(const RequestDescription& request) { return request.given_tokens > 0; }

// Work of the request's next row. As Executor::Step() counts the row.
inline Work WorkOfStepRow(const RequestDescription& request) {
  const auto context = static_cast<double>(request.context);
  Work work{.cold_context = static_cast<double>(request.cold_tokens)};
  if (FeedsTail(request)) {
    work.tail_rows = 1;
    work.tail_context = context;
  } else {
    work.step_rows = 1;
    work.step_context = context;
  }
  return work;
}

}  // namespace retroinfer
