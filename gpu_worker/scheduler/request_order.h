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
// Requests are kept by tenant: a choice changes what a tenant was served, and with it the order of
// tenants, never that within one.
//
// Threads: one at a time.
// Owns:    nothing of the requests; all arguments outlive the object.
class RequestOrder {
 public:
  RequestOrder(const SchedulerInput& input, const PriorityLevels& levels,
               const TenantShares& shares, const TimeEstimates& times,
               const PreemptingRequests& preempting);

  // Takes out the first request that `may` accepts, and returns it; nullptr if there is none.
  // `may` is asked of each.
  template <typename Predicate>
  const RequestDescription* Next(Predicate may) {
    Place best;
    ForEach([&](const Place& place) {
      if (may(*At(place).request) && IsBetter(place, best)) best = place;
    });
    return TakeOut(best);
  }
  // The same for a `may` that changes nothing: it is asked of requests in their order, as far as
  // one is accepted.
  //
  // Cost: O(requests) in a first call, O(log requests + tenants) in a later one. Where many of the
  // first requests are not accepted, O(requests).
  template <typename Predicate>
  const RequestDescription* NextInOrder(Predicate may) {
    const RequestDescription* next = nullptr;
    passed_over_.clear();
    while (next == nullptr && !is_searched_) {
      const size_t tenant = TenantOfFirst();
      if (tenant == queues_.size()) break;
      const Candidate first = Pop(tenant);
      if (may(*first.request)) {
        next = first.request;
      } else {
        passed_over_.push_back(first);
        is_searched_ = passed_over_.size() == kMaxPassedOver;
      }
    }
    for (const Candidate& candidate : passed_over_) Push(candidate);
    if (next != nullptr || !is_searched_) return next;
    Place best;
    ForEach([&](const Place& place) {
      if (IsBetter(place, best) && may(*At(place).request)) best = place;
    });
    return TakeOut(best);
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
    uint64_t id;
    uint32_t tenant;
  };

  // The candidates of a tenant: among these nothing that the plan chooses changes the order.
  struct Queue {
    std::vector<Candidate> left;
    bool is_heap = false;  // the first one on top
  };
  struct Place {
    size_t tenant = 0;
    size_t index = SIZE_MAX;  // in `left`; SIZE_MAX: none
  };

  static constexpr size_t kMaxPassedOver = 8;

  template <typename Visit>
  void ForEach(Visit visit) const {
    for (size_t tenant = 0; tenant < queues_.size(); ++tenant) {
      for (size_t i = 0; i < queues_[tenant].left.size(); ++i) visit(Place{tenant, i});
    }
  }
  const Candidate& At(const Place& place) const { return queues_[place.tenant].left[place.index]; }
  bool IsBetter(const Place& place, const Place& best) const {
    return best.index == SIZE_MAX || IsBefore(At(place), At(best));
  }
  // Nullptr if there is none.
  const RequestDescription* TakeOut(const Place& place);
  // Whose candidate is the first of all; queues_.size() if there are none.
  size_t TenantOfFirst();
  Candidate Pop(size_t tenant);
  void Push(const Candidate& candidate);

  double Served(const Candidate& candidate) const {
    return shares_.Served(candidate.tenant) + tentative_[candidate.tenant];
  }
  bool IsBefore(const Candidate& a, const Candidate& b) const;
  static bool IsBeforeOfTenant(const Candidate& a, const Candidate& b);
  static bool IsAfterOfTenant(const Candidate& a, const Candidate& b) {
    return IsBeforeOfTenant(b, a);
  }

  const SchedulerInput& input_;
  const PriorityLevels& levels_;
  const TenantShares& shares_;
  const TimeEstimates& times_;
  const PreemptingRequests& preempting_;
  std::vector<double> tentative_;  // by tenant: Charge() of this plan
  std::vector<Queue> queues_;      // by tenant
  // NextInOrder() has passed over so many that it goes through all.
  bool is_searched_ = false;
  std::vector<Candidate> passed_over_;
};

}  // namespace retroinfer
