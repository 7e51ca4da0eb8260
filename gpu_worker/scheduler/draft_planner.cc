#include "gpu_worker/scheduler/draft_planner.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace retroinfer {
namespace {

// Share of a step that the draft model may read in a round where the limit leaves less.
constexpr double kLeastReading = 0.25;

size_t FreeRows(const SchedulerOptions& options, const StepPlan& plan) {
  const auto all = static_cast<size_t>(options.max_batch);
  return all - std::min(all, plan.decode.size());
}

}  // namespace

// Of requests that have one row of the step: those with drafts.
std::vector<DraftPlanner::Candidate> DraftPlanner::CandidatesOf(const SchedulerInput& input,
                                                                const StepPlan& plan, Model model) {
  std::vector<Candidate> candidates;
  for (const RequestDescription& request : input.requests) {
    if (request.measures_given) continue;
    const bool has_draft = request.more_rows > 0 && request.draft_chance > 0;
    const RequestDescription::ByModel& by_model = request.by_model;
    const bool asks_model = model != Model::kUnused && by_model.rows > 0 &&
                            (model == Model::kAnywhere || by_model.unread == 0) &&
                            !(has_draft && request.draft_chance >= by_model.chance);
    if (!has_draft && !asks_model) continue;
    if (std::ranges::find(plan.decode, request.id) == plan.decode.end()) continue;
    const double chance = asks_model ? by_model.chance : request.draft_chance;
    candidates.push_back({.request = &request,
                          .by_model = asks_model,
                          .most = asks_model ? by_model.rows : request.more_rows,
                          .chance = chance,
                          .next_chance = chance});
  }
  return candidates;
}

// One that decodes alone waits at most for twice its step. Others must not wait for a request whose
// drafts are right: the more of them there are, the less a step may be lengthened beyond the
// target.
double DraftPlanner::LimitOf(const StepPlan& plan, const Work& step, double others) const {
  const double seconds = times_.costs().Seconds(step);
  const double longer = seconds * (1 + 1 / static_cast<double>(plan.decode.size()));
  return std::max(options_.inter_token_target, others + longer);
}

bool DraftPlanner::AddRow(double others, double limit, Choice& choice) const {
  const auto best = std::ranges::max_element(choice.candidates, {}, &Candidate::next_chance);
  if (best->next_chance <= 0) return false;
  Outcome next = choice.outcomes.back();
  next.candidate = static_cast<size_t>(best - choice.candidates.begin());
  next.work.step_rows += 1;
  next.work.step_context += static_cast<double>(best->request->context);
  if (best->by_model) {
    // All texts share its steps: as many as the longest draft has tokens.
    next.work.draft_steps = std::max(next.work.draft_steps, static_cast<double>(best->rows + 1));
    next.work.draft_rows += 1;
    if (best->rows == 0)
      next.work.draft_rows += static_cast<double>(best->request->by_model.behind);
  }
  next.seconds = others + times_.costs().Seconds(next.work);
  next.tokens += best->next_chance;
  if (next.seconds > limit) return false;
  choice.outcomes.push_back(next);
  best->next_chance = ++best->rows < best->most ? best->next_chance * best->chance : 0;
  return true;
}

DraftPlanner::Choice DraftPlanner::Choose(const SchedulerInput& input, const StepPlan& plan,
                                          Model model) const {
  const double others = times_.SecondsBesideStep(plan);
  Choice choice{.candidates = CandidatesOf(input, plan, model),
                .outcomes = {{.work = plan.step,
                              .seconds = others + times_.costs().Seconds(plan.step),
                              .tokens = static_cast<double>(plan.decode.size())}}};
  if (choice.candidates.empty()) return choice;
  const double limit = LimitOf(plan, plan.step, others);
  const size_t free_rows = FreeRows(options_, plan);
  while (choice.outcomes.size() <= free_rows && AddRow(others, limit, choice)) {
    const size_t rows = choice.outcomes.size() - 1;
    if (rows != free_rows && !std::has_single_bit(rows)) continue;
    if (choice.outcomes[rows].Gain(choice.best()) > 0) choice.rows = rows;
  }
  if (choice.best().Gain(choice.outcomes.front()) < kLeastGain) choice.rows = 0;
  return choice;
}

void DraftPlanner::TakeRows(const Choice& choice, StepPlan& plan) {
  plan.step = choice.best().work;
  for (size_t i = 1; i <= choice.rows; ++i) {
    const Candidate& candidate = choice.candidates[choice.outcomes[i].candidate];
    const uint64_t id = candidate.request->id;
    plan.decode.push_back(id);
    shares_.Charge(candidate.request->tenant, 1);
    if (!candidate.by_model) continue;
    const auto found = std::ranges::find(plan.drafts, id, &StepPlan::Draft::id);
    if (found != plan.drafts.end()) {
      ++found->count;
    } else {
      plan.drafts.push_back({.id = id, .count = 1});
    }
  }
}

const RequestDescription* DraftPlanner::FirstOfModel(const SchedulerInput& input,
                                                     const StepPlan& plan, bool is_read) {
  for (const RequestDescription& request : input.requests) {
    const RequestDescription::ByModel& by_model = request.by_model;
    if (by_model.rows <= 0 || (by_model.unread == 0) != is_read) continue;
    if (std::ranges::find(plan.decode, request.id) != plan.decode.end()) return &request;
  }
  return nullptr;
}

double DraftPlanner::SecondsToTry(const SchedulerInput& input, const StepPlan& plan) const {
  const double of_token =
      times_.costs().Seconds(plan.step) / static_cast<double>(plan.decode.size());
  return kTrying * static_cast<double>(input.draft_untried) * of_token;
}

// A text is read where drafts of it would have paid for that in as long as the request has been
// decoding: how much longer it will, nobody knows, and this long is the best guess.
const RequestDescription* DraftPlanner::TextToRead(const SchedulerInput& input,
                                                   const Outcome& chosen,
                                                   const StepPlan& plan) const {
  const double of_row = times_.costs().Seconds({.draft_reads = 1});
  const auto seconds = [of_row](const RequestDescription& request) {
    return static_cast<double>(request.by_model.unread) * of_row;
  };
  const Choice choice = Choose(input, plan, Model::kAnywhere);
  const double gain = choice.best().Gain(chosen);
  for (size_t i = 1; i <= choice.rows && gain >= kLeastGain; ++i) {
    const Candidate& candidate = choice.candidates[choice.outcomes[i].candidate];
    const RequestDescription& request = *candidate.request;
    if (!candidate.by_model || request.by_model.unread == 0) continue;
    if (seconds(request) <= gain * (input.now - request.decoding_since)) return &request;
  }
  const RequestDescription* const first = FirstOfModel(input, plan, false);
  const bool tries = first != nullptr && FirstOfModel(input, plan, true) == nullptr &&
                     seconds(*first) <= SecondsToTry(input, plan);
  return tries ? first : nullptr;
}

void DraftPlanner::PlanReading(const SchedulerInput& input, const Outcome& chosen,
                               StepPlan& plan) const {
  const RequestDescription* request = nullptr;
  if (input.draft_reading == 0) {
    request = TextToRead(input, chosen, plan);
  } else if (std::ranges::find(plan.decode, input.draft_reading) != plan.decode.end()) {
    request = &*std::ranges::find(input.requests, input.draft_reading, &RequestDescription::id);
  }
  if (request == nullptr || request->by_model.unread == 0) return;
  const double of_row = times_.costs().Seconds({.draft_reads = 1});
  const double left =
      std::max(LimitOf(plan, plan.step, times_.SecondsBesideStep(plan)) - chosen.seconds,
               kLeastReading * times_.costs().Seconds(plan.step));
  const auto unread = static_cast<double>(request->by_model.unread);
  const double rows = of_row > 0 ? std::min(left / of_row, unread) : unread;
  plan.draft_reads.push_back(
      {.id = request->id, .rows = std::max<int64_t>(1, static_cast<int64_t>(rows))});
}

// Of one token.
bool DraftPlanner::TryModel(const SchedulerInput& input, StepPlan& plan) {
  const RequestDescription* const request = FirstOfModel(input, plan, true);
  if (request == nullptr) return false;
  Work work{.step_rows = 1,
            .step_context = static_cast<double>(request->context),
            .draft_steps = 1,
            .draft_rows = 1 + static_cast<double>(request->by_model.behind)};
  if (times_.costs().Seconds(work) > SecondsToTry(input, plan)) return false;
  plan.step += work;
  plan.decode.push_back(request->id);
  plan.drafts.push_back({.id = request->id, .count = 1});
  shares_.Charge(request->tenant, 1);
  return true;
}

void DraftPlanner::Plan(const SchedulerInput& input, StepPlan& plan) {
  if (plan.decode.empty() || FreeRows(options_, plan) == 0) return;
  Choice choice = Choose(input, plan, Model::kUnused);
  if (FirstOfModel(input, plan, true) != nullptr) {
    Choice with_model = Choose(input, plan, Model::kWhereRead);
    if (with_model.best().Gain(choice.best()) > 0) choice = std::move(with_model);
  }
  if (FirstOfModel(input, plan, false) != nullptr) PlanReading(input, choice.best(), plan);
  if (!choice.AsksModel() && TryModel(input, plan)) return;
  if (choice.rows > 0) TakeRows(choice, plan);
}

}  // namespace retroinfer
