// The order of requests that wait for memory or to be read: a part of Scheduler.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {

// Whether the prompt fits into the lane of short ones.
inline bool IsShort(const SchedulerInput& input, const RequestDescription& request) {
  return input.lanes.size() > 1 &&
         request.prompt_tokens + request.later_tokens <= input.lanes.back().max_tokens;
}

// Waiting, ready and suspended requests, in the order in which they are served.
class Scheduler::Order {
 public:
  Order(const Scheduler& scheduler, const SchedulerInput& input)
      : shares_(scheduler.shares()), tentative_(input.weights.size(), 0.0), input_(input) {
    for (const RequestDescription& request : input.requests) {
      if (request.phase == RequestPhase::kWaiting || request.phase == RequestPhase::kReady ||
          request.phase == RequestPhase::kSuspended) {
        PutBack(request, scheduler);
      }
    }
  }

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
  void Charge(const RequestDescription& request) {
    tentative_[request.tenant] +=
        static_cast<double>(request.prompt_tokens) / input_.weights[request.tenant];
  }
  // Adds a request to those that Next() chooses from. A request that Next() took out is added again
  // when the plan has made it ready for more.
  void PutBack(const RequestDescription& request, const Scheduler& scheduler) {
    const double waited = std::max(0.0, input_.now - request.arrival);
    const bool is_read = request.phase == RequestPhase::kSuspended;
    const double left = is_read ? 0 : scheduler.SecondsToRead(request);
    // Others were preempted for this request: if another request took their memory first, the
    // suspensions would have been for nothing.
    const int64_t level = scheduler.HasPreempted(request, input_.now)
                              ? std::numeric_limits<int64_t>::min()
                              : scheduler.LevelOf(request.priority, waited);
    left_.push_back({&request, level, left - kAgeing * waited});
  }

 private:
  struct Candidate {
    const RequestDescription* request;
    int64_t level;
    double score;  // seconds
  };

  double Served(const Candidate& candidate) const {
    return shares_.Served(candidate.request->tenant) + tentative_[candidate.request->tenant];
  }
  bool IsBefore(const Candidate& a, const Candidate& b) const {
    if (a.level != b.level) return a.level < b.level;
    if (a.request->tenant != b.request->tenant) {
      const double served_a = Served(a), served_b = Served(b);
      if (served_a != served_b) return served_a < served_b;
    }
    if (a.score != b.score) return a.score < b.score;
    return a.request->id < b.request->id;
  }

  const TenantShares& shares_;
  std::vector<double> tentative_;  // by tenant
  const SchedulerInput& input_;
  std::vector<Candidate> left_;
};

}  // namespace retroinfer
