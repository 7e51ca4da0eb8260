// The order in which requests get memory and are read, within one plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu_worker/scheduler/preempting_requests.h"
#include "gpu_worker/scheduler/priority_levels.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/tenant_shares.h"
#include "gpu_worker/scheduler/time_estimates.h"

namespace retroinfer {

// Waiting, ready and suspended requests: preempting ones first, then by level, then by what their
// tenants were served, then by what is left to read, less what they have aged.
//
// Threads: one at a time.
// Owns:    nothing of the requests; all arguments outlive the object.
class RequestOrder {
 public:
  RequestOrder(const SchedulerInput& input, const PriorityLevels& levels,
               const TenantShares& shares, const TimeEstimates& times,
               const PreemptingRequests& preempting);

  // Takes out the first request that `may` accepts, and returns it; nullptr if there is none.
  template <typename Predicate>
  const RequestDescription* Next(Predicate may) {
    size_t best = left_.size();
    for (size_t i = 0; i < left_.size(); ++i) {
      if (may(*left_[i].request) && (best == left_.size() || IsBefore(left_[i], left_[best]))) {
        best = i;
      }
    }
    if (best == left_.size()) return nullptr;
    const RequestDescription* const request = left_[best].request;
    left_.erase(left_.begin() + static_cast<ptrdiff_t>(best));
    return request;
  }
  // Counts the prompt of a chosen request as served to its tenant, for the later choices of this
  // plan.
  void Charge(const RequestDescription& request);
  // Adds a request to those that Next() chooses from. A request that Next() took out is added again
  // when the plan has made it ready for more.
  void PutBack(const RequestDescription& request);

 private:
  struct Candidate {
    const RequestDescription* request;
    int64_t level;
    double score;  // seconds
  };

  double Served(const Candidate& candidate) const {
    return shares_.Served(candidate.request->tenant) + tentative_[candidate.request->tenant];
  }
  bool IsBefore(const Candidate& a, const Candidate& b) const;

  const SchedulerInput& input_;
  const PriorityLevels& levels_;
  const TenantShares& shares_;
  const TimeEstimates& times_;
  const PreemptingRequests& preempting_;
  std::vector<double> tentative_;  // by tenant: Charge() of this plan
  std::vector<Candidate> left_;
};

}  // namespace retroinfer
