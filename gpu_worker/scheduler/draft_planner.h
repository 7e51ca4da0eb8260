// Plans which drafted tokens are fed with a step: rows that may turn out to be for nothing. Drafts
// of a draft model cost steps of that model as well, and its reading of the text before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu_worker/scheduler/scheduler_options.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/tenant_shares.h"
#include "gpu_worker/scheduler/time_estimates.h"

namespace retroinfer {

// Threads: one at a time.
// Owns:    nothing; all arguments outlive the object.
class DraftPlanner {
 public:
  // `shares` is charged for what is planned.
  DraftPlanner(const SchedulerOptions& options, const TimeEstimates& times, TenantShares& shares)
      : options_(options), times_(times), shares_(shares) {}

  // Adds to plan.decode: rows for drafts, as many as are expected to give the most tokens a second,
  // and fit into the batch and the limit on its time. Their number is a power of two, or all rows
  // that are free: a step of another number of rows has another shape, which is recorded
  // (executor/step_graphs.h). None, unless all of them together gain kLeastGain. A request's rows
  // are of one source: its texts, whose drafts cost nothing, or the draft model (plan.drafts) where
  // that is right more often and expected to pay.
  //
  // Lets the draft model read a text (plan.draft_reads) once its drafts would have paid for the
  // reading in as long as the request has been decoding.
  //
  // Where the model is not expected to pay, it is asked for a token now and then, after so many
  // tokens that this takes kTrying of their time: what is expected may be wrong. One that was never
  // asked is asked at once.
  // REQUIRES: passes and measurements are planned, and of each request that draws at most one row.
  void Plan(const SchedulerInput& input, StepPlan& plan);

  // Tokens a second more than without drafts: what is less may be an error of the estimates.
  static constexpr double kLeastGain = 0.02;
  // Share of the time for drafts on trial.
  static constexpr double kTrying = 0.01;

 private:
  enum class Model {
    kUnused,
    kWhereRead,  // of requests whose text it has read
    kAnywhere,   // as if it had read all texts
  };
  // A request that may get further rows.
  struct Candidate {
    const RequestDescription* request = nullptr;
    bool by_model = false;
    int64_t rows = 0;        // planned
    int64_t most = 0;        // rows
    double chance = 0;       // that a draft is right if those before it are
    double next_chance = 0;  // that the next row is right: a token more
  };
  // What is expected of a round whose step has so many rows for drafts.
  struct Outcome {
    size_t candidate = 0;  // whose row was added last
    Work work;             // of the step, and of the draft model before it
    double seconds = 0;
    double tokens = 0;

    // Share of tokens a second that it gives more.
    double Gain(const Outcome& other) const {
      return tokens * other.seconds / (other.tokens * seconds) - 1;
    }
  };
  // The first outcome has no drafts, each further one a row more; the first `rows` rows are best.
  struct Choice {
    std::vector<Candidate> candidates;
    std::vector<Outcome> outcomes;
    size_t rows = 0;
    bool AsksModel() const { return best().work.draft_steps > 0; }
    const Outcome& best() const { return outcomes[rows]; }
  };

  static std::vector<Candidate> CandidatesOf(const SchedulerInput& input, const StepPlan& plan,
                                             Model model);
  Choice Choose(const SchedulerInput& input, const StepPlan& plan, Model model) const;
  // Adds a row of the candidate whose next draft is most likely right. Returns false if there is
  // none, or the round takes longer than `limit` then.
  bool AddRow(double others, double limit, Choice& choice) const;
  void TakeRows(const Choice& choice, StepPlan& plan);
  // The request whose text is worth reading; null: none is.
  const RequestDescription* TextToRead(const SchedulerInput& input, const Outcome& chosen,
                                       const StepPlan& plan) const;
  void PlanReading(const SchedulerInput& input, const Outcome& chosen, StepPlan& plan) const;
  // Seconds that trying the model may take now.
  double SecondsToTry(const SchedulerInput& input, const StepPlan& plan) const;
  // Plans a token of the model on trial, if there is time for that. Returns whether it has.
  bool TryModel(const SchedulerInput& input, StepPlan& plan);
  // Of requests that decode, the first of which the model can draft a token, once it has read its
  // text, or whose text it has to read.
  static const RequestDescription* FirstOfModel(const SchedulerInput& input, const StepPlan& plan,
                                                bool is_read);
  // Seconds that the round may take with drafts, of which `others` are for others than the step.
  double LimitOf(const StepPlan& plan, const Work& step, double others) const;

  const SchedulerOptions& options_;
  const TimeEstimates& times_;
  TenantShares& shares_;
};

}  // namespace retroinfer
