// Decides what the engine does next: who ends or has done with its prompt, who gets memory, which
// prompts are read together, which of their rows go through which layer now, and who decodes. Pure
// logic: no device, no clock; the same inputs give the same plans.
//
//   time     Between two decode steps as much of prompts is read as fits into the target between
//            two tokens of a request, less what the step takes. While nothing decodes there is no
//            limit, but never more is enqueued than a newcomer can wait for.
//   order    Requests of a higher priority first, then those of the tenant that got least for its
//            weight, then the one with the least left to compute. Who waits moves up: a level of
//            priority each kLevelSeconds, up to the highest there is, and kAgeing seconds of its
//            work for each second. So nothing waits for ever.
//   lanes    Short prompts have a lane of their own beside the long one's and go first there, but
//            a lane that has work gets kLeastShare of the time in any case.
//   sharing  Prompts that begin with the same cached segments are read as one group, in either
//            lane, as long as joining saves more than it adds. If others had that beginning a
//            short while ago, the first one waits for them, a tenth of what sharing saves.
//   memory   A request begins with what it needs soon and gets more as it grows, only ever so that
//            all who hold memory can end (memory_bank.h); who does not get it is left out of
//            steps. A request that finds no room lets others pass for kPatience; then they leave
//            it what it lacks: extents to nobody else, and of blocks as many as let it begin when
//            those have ended that will end first of the ones that were there before.
//   measure  Rows of prompts whose log-probabilities were asked for get half of the time that
//            prompts get; tokens of a continuation that is given share a step as far as places
//            of the batch are free and the step stays within the target.
//   places   A place of the batch belongs to a request that decodes or will within kPlaceAhead.
//   aside    Where preemption is allowed, decoding requests step aside for those of a higher class
//            that wait for a place or for memory (suspensions.cc), and come back as if they had
//            newly come, with nothing left to read.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gpu_worker/scheduler/cost_model.h"
#include "gpu_worker/scheduler/memory_bank.h"
#include "gpu_worker/scheduler/output_lengths.h"
#include "gpu_worker/scheduler/place_rate.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/tenant_shares.h"

namespace retroinfer {

// What is enqueued while nothing decodes, of the target between two tokens: a newcomer waits for
// it.
struct AheadShares {
  double all = 0.5;
  double pass = 0.25;  // one of them
};

struct SchedulerOptions {
  uint32_t num_layers = 1;
  int64_t max_rows = 1024;  // of a pass
  int32_t max_batch = 8;    // of decode steps, and of a group
  double inter_token_target =
      0.05;               // seconds between two tokens of a request, while others are read
  bool preempts = false;  // decoding requests step aside for others
  AheadShares ahead;
};

class Scheduler {
 public:
  static constexpr double kLevelSeconds = 10;
  static constexpr double kAgeing = 0.1;
  static constexpr double kLeastShare = 0.2;
  static constexpr double kPatience = 2;    // seconds
  static constexpr double kPlaceAhead = 1;  // seconds
  // How often a request steps aside, and how long it stays after the first time.
  static constexpr int32_t kMaxSuspensions = 16;
  static constexpr double kLeastStay = 1;  // seconds

  explicit Scheduler(const SchedulerOptions& options) : options_(options) {}

  // The next plan. What it says is taken as done: shares are charged for it.
  //
  // REQUIRES: input.lanes is not empty and as long in every call; tenants are in input.weights.
  // Cost:     O(requests), and O(requests * max_batch) where some may begin.
  StepPlan Plan(const SchedulerInput& input);

  const SchedulerOptions& options() const { return options_; }
  CostModel& costs() { return costs_; }
  const CostModel& costs() const { return costs_; }
  const TenantShares& shares() const { return shares_; }

  // Seconds that the prompt of a request takes alone.
  double SecondsToRead(const RequestDescription& request) const;
  // Seconds until all prompts are read that wait or are being read, beside the steps of those who
  // decode, and until all of them have a place of the batch: how long the last of a queue would
  // wait. Cost: O(requests).
  double ExpectedWait(const SchedulerInput& input) const;
  // Seconds until the first token of a request that waits, at the earliest: its own prompt, and
  // those of its tenant that come before it whatever else happens. Cost: O(requests).
  double EarliestFirstToken(const SchedulerInput& input, const RequestDescription& request) const;
  // Whether that rests on something measured.
  bool knows_costs() const { return costs_.knows_speed(); }

 private:
  // Passes are planned such that a round takes at most so many times the target, nearly always.
  static constexpr double kTolerance = 1.2;
  // Where steps alone take all of the target, prompts still get this share of a step's time.
  static constexpr double kLeastOfStep = 0.25;

  class Order;
  struct Admission;
  struct GroupInTheMaking;
  // Requests with the same prefix that were there at the same time.
  struct Company {
    double seen = 0;            // seconds; when two of them were there last
    int64_t size = 0;           // the most that were there at a time
    double gathers_since = -1;  // the first one is ready and waits for others; -1: none
  };
  struct Room;

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
  const RequestDescription* RoomMadeFor(const SchedulerInput& input) const;
  bool IsKeptFromStalled(const RequestDescription& request, double now) const;
  void PlanAdmissions(const SchedulerInput& input, MemoryBank& bank, Order& order, StepPlan& plan);
  const RequestDescription* Held(const SchedulerInput& input) const;
  const RequestDescription* HeldForArena(const SchedulerInput& input) const;
  size_t KeepFor(const RequestDescription& held, MemoryBank& bank) const;
  void UpdateBlocked(const SchedulerInput& input);
  void Block(const SchedulerInput& input, const RequestDescription& request, bool is_held);

  void PlanSuspensions(const SchedulerInput& input, StepPlan& plan);
  Room FreeRoom(const SchedulerInput& input) const;
  static Room NeedOf(const SchedulerInput& input, const RequestDescription& request);
  std::vector<const RequestDescription*> WhoWaitsForRoom(
      const SchedulerInput& input, std::span<const RequestDescription* const> batch) const;
  bool YieldsTo(const RequestDescription& one, const RequestDescription& other) const;
  std::vector<const RequestDescription*> WhoYields(std::span<const RequestDescription* const> batch,
                                                   const RequestDescription& other,
                                                   double now) const;
  bool Passes(const RequestDescription& request, const RequestDescription& held, double now) const;
  bool HasRoomMade(const RequestDescription& request, double now) const;
  static bool MayGoOn(const MemoryBank& bank, const RequestDescription& request);
  static void Give(const RequestDescription& request, MemoryBank& bank);
  static std::vector<const RequestDescription*> WhoDecodes(
      const SchedulerInput& input, std::span<const RequestDescription* const> batch);
  static bool Suspend(std::span<const RequestDescription* const> yielding,
                      const RequestDescription& waiting, Room lacked, const MemoryBank& bank,
                      int64_t free_suspended_blocks, StepPlan& plan);

  void PlanGroups(const SchedulerInput& input, Order& order, std::vector<LaneDescription>& lanes,
                  StepPlan& plan);
  void UpdateCompany(const SchedulerInput& input);
  bool WaitsForCompany(const SchedulerInput& input, const RequestDescription& request);
  bool MayShare(const GroupInTheMaking& making, const RequestDescription& request) const;
  bool MayJoin(const GroupInTheMaking& making, const RequestDescription& request);
  bool Join(const RequestDescription& request, GroupInTheMaking& making);
  void PlanPasses(const SchedulerInput& input, std::vector<LaneDescription>& lanes, StepPlan& plan);
  void PlanMeasures(const SchedulerInput& input, StepPlan& plan);
  double SecondsToMeasure(const StepPlan& plan) const;
  double SecondsBeside(bool is_disturbed, Work& work) const;
  void PlanMoreRows(const SchedulerInput& input, StepPlan& plan);
  void PlanFirstStep(const LaneDescription& lane, StepPlan& plan);
  std::optional<size_t> NextLane(double now, const std::vector<LaneDescription>& lanes) const;
  StepPlan::Pass PassOf(const LaneDescription& lane, size_t index, double limit,
                        bool is_disturbed) const;
  int64_t PlacesLeft(const SchedulerInput& input) const;
  double SecondsLeft(const LaneDescription& lane) const;
  void Charge(const LaneDescription& lane, const StepPlan::Pass& pass);

  const SchedulerOptions options_;
  CostModel costs_;
  TenantShares shares_;
  PlaceRate place_rate_;
  OutputLengths lengths_;
  // Requests that found no room and do not hold all that they need yet, by id.
  struct Blocked {
    double since = 0;
    bool lacks_extents = false;  // the arena had no room for it when it asked last
    // Those who held memory when others were to leave it what it lacks, in order.
    std::optional<std::vector<uint64_t>> there = std::nullopt;
  };
  absl::flat_hash_map<uint64_t, Blocked> blocked_;
  // Those who decode and did not get what they need for their next token, by id.
  struct Stall {
    double since = 0;
    int32_t priority = 0;
    bool lacks_dense = false, lacks_meta = false;
  };
  absl::flat_hash_map<uint64_t, Stall> stalled_;
  absl::flat_hash_map<uint64_t, Company> companies_;  // by prefix
  // Requests that others stepped aside for, by id, and when: what those gave up is theirs for
  // kPatience.
  absl::flat_hash_map<uint64_t, double> made_room_for_;
  int64_t highest_ = 0;               // the highest priority among the requests of this plan
  std::vector<double> lane_seconds_;  // planned for each lane since all of them had work
};

}  // namespace retroinfer
