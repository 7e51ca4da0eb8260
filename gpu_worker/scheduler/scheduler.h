// Decides what the engine does next: which requests end or have finished their prompts, which get
// memory, which prompts are read together, which rows go through which layer now, and which
// requests decode. Pure logic: no device, no clock; the same inputs give the same plans.
//
//   time     Between two decode steps as many rows of prompts are read as fit into the target
//            between two tokens of a request, less what the step takes. While nothing decodes there
//            is no limit, but never more is enqueued than a new request can wait for.
//   order    Requests of a higher priority first, then those of the tenant that was served least
//            for its weight, then the request with the least left to compute. A waiting request
//            moves up: a level of priority each kLevelSeconds, up to the highest there is, and
//            kAgeing seconds of its work for each second. So no request waits for ever.
//   lanes    Short prompts have a lane of their own beside the long prompt's lane and go first
//            there, but a lane that has work gets kLeastShare of the time in any case.
//   sharing  Prompts that begin with the same cached segments (a prefix group) are read as one, in
//            either lane, as long as joining saves more than joining adds. If the prefix group had
//            several requests a short while ago, its first request waits for the others, at most a
//            tenth of the seconds that one shared read saves.
//   memory   A request begins with the blocks that it needs soon and gets more as it grows, only
//            ever so that all requests that hold blocks can end (memory_bank.h). A request that
//            lacks blocks for its next token is stalled: it is left out of steps. A waiting request
//            that is blocked lets others overtake for kPatience. Then it may become the head of
//            line, for which freed memory is reserved: extents go to nobody else, and of the blocks
//            as many are reserved as let it begin once the requests have ended that held blocks
//            when it became the head of line and that are expected to end first.
//   measure  Rows of prompts whose log-probabilities were asked for get half of the time that
//            prompts get. Tokens of a given continuation share a step as far as rows of the batch
//            are free. The round stays within the target if the step generates for a client; if
//            nobody waits for a next token, the step may take kMostOfScoring times its time.
//   batch    A row of the batch belongs to a request that decodes or will within kBatchRowAhead.
//   preempt  Where preemption is allowed, decoding requests are suspended for requests of a higher
//            class that wait for a row of the batch or for memory (suspensions.cc). A suspended
//            request is resumed in the order of new requests, with nothing left to read.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gpu_worker/scheduler/batch_row_rate.h"
#include "gpu_worker/scheduler/cost_model.h"
#include "gpu_worker/scheduler/memory_bank.h"
#include "gpu_worker/scheduler/output_lengths.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/tenant_shares.h"

namespace retroinfer {

// How much is enqueued while nothing decodes, as shares of the target between two tokens: a new
// request waits until the device has done all of that.
struct AheadShares {
  double all = 0.5;    // all passes together
  double pass = 0.25;  // one pass
};

struct SchedulerOptions {
  uint32_t num_layers = 1;
  int64_t max_rows = 1024;  // of a pass
  int32_t max_batch = 8;    // rows of a decode step, and members of a group
  // Seconds between two tokens of a request while other prompts are read.
  double inter_token_target = 0.05;
  bool preempts = false;  // decoding requests may be suspended for others
  AheadShares ahead;
};

class Scheduler {
 public:
  static constexpr double kLevelSeconds = 10;
  static constexpr double kAgeing = 0.1;
  static constexpr double kLeastShare = 0.2;
  static constexpr double kPatience = 2;       // seconds
  static constexpr double kBatchRowAhead = 1;  // seconds
  // How often a request is suspended at most, and how long it decodes after the first resumption
  // before it may be suspended again.
  static constexpr int32_t kMaxSuspensions = 16;
  static constexpr double kLeastStay = 1;  // seconds

  explicit Scheduler(const SchedulerOptions& options) : options_(options) {}

  // Returns the next plan. The scheduler takes the plan as done, and charges tenants for it.
  //
  // REQUIRES: input.lanes is not empty and as long in every call; tenants are in input.weights.
  // Cost:     O(requests), and O(requests * max_batch) where requests may begin.
  StepPlan Plan(const SchedulerInput& input);

  const SchedulerOptions& options() const { return options_; }
  CostModel& costs() { return costs_; }
  const CostModel& costs() const { return costs_; }
  const TenantShares& shares() const { return shares_; }

  // Seconds that the prompt of a request takes alone.
  double SecondsToRead(const RequestDescription& request) const;
  // Seconds until all prompts that wait or are being read have been read, beside the decode steps,
  // and until all their requests have a row of the batch: how long the last request of the queue
  // would wait. Cost: O(requests).
  double ExpectedWait(const SchedulerInput& input) const;
  // Lower bound of the seconds until the first token of a waiting request: the time of its own
  // prompt, and of its tenant's prompts that certainly come before. Cost: O(requests).
  double EarliestFirstToken(const SchedulerInput& input, const RequestDescription& request) const;
  // Whether costs() has observed any work: before, all seconds above are guesses.
  bool knows_costs() const { return costs_.knows_speed(); }

 private:
  // Passes are planned such that nearly every round takes at most this many times the target.
  static constexpr double kTolerance = 1.2;
  // Where steps alone take all of the target, prompts still get this share of a step's time.
  static constexpr double kLeastOfStep = 0.25;
  // Most that further rows of given tokens lengthen a step that generates for nobody. A token costs
  // at most twice what it costs in the largest step, and a request that arrives waits for two steps
  // of one row at most.
  static constexpr double kMostOfScoring = 2;

  class Order;
  struct Admission;
  struct GroupBuilder;
  // Requests with the same RequestDescription::prefix that were live at the same time.
  struct PrefixGroup {
    double seen = 0;            // seconds; when two of the requests were live last
    int64_t size = 0;           // most requests that were live at a time
    double gathers_since = -1;  // when a ready request began to wait for others; -1: none waits
  };
  struct Resources;

  int64_t LevelOf(int32_t priority, double waited) const;
  void UpdateShares(const SchedulerInput& input);
  void LearnCosts(const SchedulerInput& input);
  void PlanOutcomes(const SchedulerInput& input, StepPlan& plan) const;
  std::optional<StepPlan::Ending> EndingOf(const SchedulerInput& input,
                                           const RequestDescription& request) const;
  double LeastSecondsToFirst(const SchedulerInput& input, const RequestDescription& request) const;
  std::vector<const RequestDescription*> BatchOf(const SchedulerInput& input,
                                                 const StepPlan& plan) const;
  void PlanDecode(const SchedulerInput& input, StepPlan& plan);
  void PlanGrowth(const SchedulerInput& input, MemoryBank& bank, StepPlan& plan);
  bool GrowsLater(const RequestDescription& one, const RequestDescription& other, double now) const;
  const RequestDescription* PreemptingRequest(const SchedulerInput& input) const;
  bool IsBehindStalled(const RequestDescription& request, double now) const;
  void PlanAdmissions(const SchedulerInput& input, MemoryBank& bank, Order& order, StepPlan& plan);
  const RequestDescription* HeadOfLine(const SchedulerInput& input) const;
  const RequestDescription* HeadOfLineForArena(const SchedulerInput& input) const;
  size_t ReserveFor(const RequestDescription& head, MemoryBank& bank) const;
  void UpdateBlocked(const SchedulerInput& input);
  void Block(const SchedulerInput& input, const RequestDescription& request, bool is_head);

  void PlanSuspensions(const SchedulerInput& input, StepPlan& plan);
  Resources FreeResources(const SchedulerInput& input) const;
  static Resources NeedOf(const SchedulerInput& input, const RequestDescription& request);
  std::vector<const RequestDescription*> WaitingRequests(
      const SchedulerInput& input, std::span<const RequestDescription* const> batch) const;
  bool IsPreemptibleBy(const RequestDescription& one, const RequestDescription& other) const;
  std::vector<const RequestDescription*> PreemptionCandidates(
      std::span<const RequestDescription* const> batch, const RequestDescription& other,
      double now) const;
  bool MayOvertake(const RequestDescription& request, const RequestDescription& head,
                   double now) const;
  bool HasPreempted(const RequestDescription& request, double now) const;
  static bool CanProceed(const MemoryBank& bank, const RequestDescription& request);
  static void Commit(const RequestDescription& request, MemoryBank& bank);
  static std::vector<const RequestDescription*> DecodingRequests(
      const SchedulerInput& input, std::span<const RequestDescription* const> batch);
  static bool Suspend(std::span<const RequestDescription* const> candidates,
                      const RequestDescription& waiting, Resources lacked, const MemoryBank& bank,
                      int64_t free_suspended_blocks, StepPlan& plan);

  void PlanGroups(const SchedulerInput& input, Order& order, std::vector<LaneDescription>& lanes,
                  StepPlan& plan);
  void UpdatePrefixGroups(const SchedulerInput& input);
  bool WaitsForPrefixGroup(const SchedulerInput& input, const RequestDescription& request);
  bool MayShare(const GroupBuilder& builder, const RequestDescription& request) const;
  bool MayJoin(const GroupBuilder& builder, const RequestDescription& request);
  bool Join(const RequestDescription& request, GroupBuilder& builder);
  void PlanPasses(const SchedulerInput& input, std::vector<LaneDescription>& lanes, StepPlan& plan);
  void PlanMeasures(const SchedulerInput& input, StepPlan& plan);
  double SecondsToMeasure(const StepPlan& plan) const;
  double SecondsBeside(bool is_clustering, Work& work) const;
  void PlanMoreRows(const SchedulerInput& input, StepPlan& plan);
  void PlanFirstStep(const LaneDescription& lane, StepPlan& plan);
  std::optional<size_t> NextLane(double now, const std::vector<LaneDescription>& lanes) const;
  StepPlan::Pass PassOf(const LaneDescription& lane, size_t index, double limit,
                        bool is_clustering) const;
  int64_t BatchRowsLeft(const SchedulerInput& input) const;
  double SecondsLeft(const LaneDescription& lane) const;
  void Charge(const LaneDescription& lane, const StepPlan::Pass& pass);

  const SchedulerOptions options_;
  CostModel costs_;
  TenantShares shares_;
  BatchRowRate batch_row_rate_;
  OutputLengths lengths_;
  // Waiting and suspended requests that lacked memory when their turn came, by id.
  struct Blocked {
    double since = 0;
    bool lacks_extents = false;  // the arena was full when the request asked last
    // Requests that held memory when this request first became the head of line, sorted: the
    // reservation waits for the end of no others. None: it was never the head of line.
    std::optional<std::vector<uint64_t>> holders = std::nullopt;
  };
  absl::flat_hash_map<uint64_t, Blocked> blocked_;
  // Decoding requests without blocks for their next token, by id.
  struct Stall {
    double since = 0;
    int32_t priority = 0;
    bool lacks_dense = false, lacks_meta = false;
  };
  absl::flat_hash_map<uint64_t, Stall> stalled_;
  absl::flat_hash_map<uint64_t, PrefixGroup> prefix_groups_;  // by RequestDescription::prefix
  // Requests for which others were preempted, by id, and when: what the others gave up is reserved
  // for kPatience.
  absl::flat_hash_map<uint64_t, double> preempted_for_;
  int64_t highest_ = 0;               // the highest priority among the requests of this plan
  std::vector<double> lane_seconds_;  // planned for each lane since all lanes had work
};

}  // namespace retroinfer
