#include "tests/gpu_worker/scheduler/simulation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "gpu_worker/scheduler/lane_rows.h"

namespace retroinfer::test_support {
namespace {

constexpr double kStoreSeconds = 1e-3;   // until the store answers
constexpr double kSettleSeconds = 0.02;  // of the last segments of a prompt
constexpr double kCopySeconds = 2e-4;    // of a dense block, to the host or back
constexpr double kRoundSeconds = 1e-4;   // of the engine itself
constexpr double kNever = std::numeric_limits<double>::infinity();

int64_t ArenaTokens(const SimulatedWorker& worker, const SimulatedRequest& request) {
  const int64_t total = request.prompt_tokens + request.max_tokens;
  return total >= worker.dense_below ? total : 0;
}

// Tokens behind the prompt that a request has memory for when it begins or comes back, and beyond
// which it asks for more (BlockDemand).
constexpr int64_t kAtFirst = 256;
constexpr int64_t kAhead = 64;

// With so many tokens behind the prompt.
int32_t DenseBlocks(const SimulatedWorker& worker, const SimulatedRequest& request,
                    int64_t length) {
  return static_cast<int32_t>(1 +
                              std::min(request.prompt_tokens + length, worker.dense_below) / 64);
}

// Of 64 clusters of 16 tokens.
int32_t MetaBlocks(const SimulatedWorker& worker, const SimulatedRequest& request, int64_t length) {
  if (ArenaTokens(worker, request) == 0) return 0;
  return static_cast<int32_t>((request.prompt_tokens + length + 1023) / 1024);
}

class Simulation {
 public:
  Simulation(const SimulatedWorker& worker, std::vector<SimulatedRequest> requests,
             const Planner& planner, const Observer& observer, uint64_t seed, const Hooks& hooks)
      : worker_(worker), planner_(planner), observer_(observer), hooks_(hooks), random_(seed) {
    result_.requests = std::move(requests);
    result_.served_at_half.assign(worker.weights.size(), 0.0);
    served_.assign(worker.weights.size(), 0.0);
    waits_until_.assign(result_.requests.size(), kNever);
    generated_.assign(result_.requests.size(), 0);
    last_token_.assign(result_.requests.size(), 0);
    reach_.assign(result_.requests.size(), 0);
    fed_.assign(result_.requests.size(), 0);
    for (const int64_t tokens : {worker.long_lane_tokens, worker.short_lane_tokens}) {
      input_.lanes.push_back({.max_tokens = tokens, .members = {}});
    }
    lane_members_left_.assign(input_.lanes.size(), 0);
    input_.weights = worker.weights;
    input_.free_passes = 64;
  }

  SimulationResult Run() {
    while (result_.broken.empty() && (next_ < result_.requests.size() || !Live().empty())) {
      Round();
    }
    result_.end = now_;
    return std::move(result_);
  }

 private:
  std::vector<RequestDescription>& Live() { return input_.requests; }

  void Break(const std::string& what) {
    if (result_.broken.empty()) result_.broken = what;
  }
  RequestDescription* Find(uint64_t id) {
    for (RequestDescription& request : Live()) {
      if (request.id == id) return &request;
    }
    return nullptr;
  }

  void Arrive() {
    for (; next_ < result_.requests.size() && result_.requests[next_].arrival <= now_; ++next_) {
      const SimulatedRequest& request = result_.requests[next_];
      const bool has_segments = ArenaTokens(worker_, request) > 0;
      Live().push_back({.id = next_,
                        .arrival = request.arrival,
                        .priority = request.priority,
                        .tenant = request.tenant,
                        .prompt_tokens = request.prompt_tokens,
                        .cached_tokens = request.text == 0 ? 0 : request.prompt_tokens - 4,
                        .wants_extents = has_segments,
                        .asks_store = has_segments,
                        .takes_in_order = !has_segments,
                        .given_tokens = request.given_tokens,
                        .given_depth = request.text_tokens + request.prompt_tokens,
                        .measures_given = request.is_scoring,
                        .tokens_left = request.max_tokens});
      HoldsNothing(Live().back());
      RefuseLast();
    }
  }

  void RefuseLast() {
    input_.now = now_;
    const RequestDescription request = Live().back();
    if (!hooks_.admit || hooks_.admit(input_, request)) return;
    result_.requests[request.id].is_refused = true;
    End(request.id);
  }

  // Of those that nobody computes.
  void EndLate() {
    std::vector<uint64_t> late;
    for (const RequestDescription& request : Live()) {
      const SimulatedRequest& told = result_.requests[request.id];
      const bool is_idle =
          request.phase == RequestPhase::kWaiting || request.phase == RequestPhase::kReady;
      if (is_idle && now_ >= told.arrival + told.deadline) late.push_back(request.id);
    }
    for (const uint64_t id : late) End(id);
  }

  void Wake() {
    for (RequestDescription& request : Live()) {
      if (waits_until_[request.id] > now_) continue;
      waits_until_[request.id] = kNever;
      if (request.phase == RequestPhase::kReserving) {
        const int64_t tokens = ArenaTokens(worker_, result_.requests[request.id]);
        if (arena_used_ + tokens > worker_.arena_tokens) {
          FreeMemory(request);
          request.phase = RequestPhase::kWaiting;
          request.arena_is_full = true;
        } else {
          arena_used_ += tokens;
          request.phase = RequestPhase::kReady;
        }
      } else if (request.phase == RequestPhase::kSettling) {
        request.is_settled = true;
      } else if (request.phase == RequestPhase::kLeaving) {
        FreeMemory(request);
        request.phase = RequestPhase::kSuspended;
        HoldsNothing(request);
      } else if (request.phase == RequestPhase::kReturning) {
        suspended_used_ -= request.suspended_blocks;
        BeginDecoding(request);
      }
    }
  }

  void BeginDecoding(RequestDescription& request) {
    request.phase = RequestPhase::kDecoding;
    request.can_decode = true;
    request.can_suspend = true;
    request.resident_since = now_;
    request.suspended_blocks = request.dense_blocks;
  }

  // Now and then a segment is being built.
  void BuildInBackground() {
    for (RequestDescription& request : Live()) {
      request.can_suspend = request.phase == RequestPhase::kDecoding &&
                            (!request.wants_extents || random_() % 4 != 0);
    }
  }

  // Tokens with KV behind the prompt.
  int64_t LengthOf(uint64_t id) const {
    return fed_[id] + std::max<int64_t>(0, generated_[id] - 1);
  }
  int64_t Reach(uint64_t id, int64_t ahead) const {
    const int64_t most = result_.requests[id].max_tokens + result_.requests[id].given_tokens;
    return worker_.reserves_all ? most : std::min(most, LengthOf(id) + ahead);
  }

  // It will begin or come back with memory for some tokens.
  void HoldsNothing(RequestDescription& request) {
    const SimulatedRequest& told = result_.requests[request.id];
    reach_[request.id] = Reach(request.id, kAtFirst);
    request.dense_blocks = DenseBlocks(worker_, told, reach_[request.id]);
    const int64_t most = told.given_tokens + told.max_tokens;
    request.more_dense_blocks = DenseBlocks(worker_, told, most) - request.dense_blocks;
    request.meta_blocks = MetaBlocks(worker_, told, reach_[request.id]);
    request.more_meta_blocks = MetaBlocks(worker_, told, most) - request.meta_blocks;
  }

  static bool Asks(const RequestDescription& request) {
    return request.asked_dense_blocks + request.asked_meta_blocks > 0;
  }

  void AskForMemory() {
    for (RequestDescription& request : Live()) {
      if (request.phase != RequestPhase::kDecoding) continue;
      const uint64_t id = request.id;
      request.asked_dense_blocks = request.asked_meta_blocks = 0;
      if (reach_[id] < Reach(id, kAhead)) {
        const int64_t wanted = Reach(id, 2 * kAhead);
        request.asked_dense_blocks =
            DenseBlocks(worker_, result_.requests[id], wanted) - request.dense_blocks;
        request.asked_meta_blocks =
            MetaBlocks(worker_, result_.requests[id], wanted) - request.meta_blocks;
        if (!Asks(request)) reach_[id] = wanted;
      }
      request.free_tokens = reach_[id] - LengthOf(id);
    }
  }

  void Grow(uint64_t id) {
    RequestDescription* const request = Find(id);
    if (request == nullptr || request->phase != RequestPhase::kDecoding || !Asks(*request)) {
      return Break("one gets memory that did not ask for it");
    }
    dense_used_ += request->asked_dense_blocks;
    meta_used_ += request->asked_meta_blocks;
    if (dense_used_ > worker_.dense_blocks) Break("too many dense blocks, as one grows");
    if (meta_used_ > worker_.meta_blocks) Break("too many meta blocks, as one grows");
    request->dense_blocks += request->asked_dense_blocks;
    request->more_dense_blocks -= request->asked_dense_blocks;
    request->meta_blocks += request->asked_meta_blocks;
    request->more_meta_blocks -= request->asked_meta_blocks;
    request->asked_dense_blocks = request->asked_meta_blocks = 0;
    if (request->more_dense_blocks < 0 || request->more_meta_blocks < 0)
      Break("one asks for more than it may need");
    request->suspended_blocks = request->dense_blocks;
    reach_[id] = Reach(id, 2 * kAhead);
    request->free_tokens = reach_[id] - LengthOf(id);
  }

  void FreeMemory(const RequestDescription& request) {
    dense_used_ -= request.dense_blocks;
    meta_used_ -= request.meta_blocks;
    --rows_used_;
  }

  void LeaveLane(uint64_t id) {
    for (size_t i = 0; i < input_.lanes.size(); ++i) {
      for (const LaneDescription::Member& member : input_.lanes[i].members) {
        if (member.id != id || --lane_members_left_[i] > 0) continue;
        input_.lanes[i].members.clear();
        input_.lanes[i].is_free = true;
        return;
      }
    }
  }

  double Seconds(const Work& work) const {
    return worker_.seconds ? worker_.seconds(work) : TrueSeconds(work);
  }

  // `more`: seconds beside those of the work.
  void Spend(const Work& work, double more) {
    if (work.passes + work.steps == 0) return;
    std::uniform_real_distribution<double> noise(1 - worker_.noise, 1 + worker_.noise);
    // What the plan calls rows of tails are rows here: `more` says what they take.
    Work rows = work;
    rows.step_rows += std::exchange(rows.tail_rows, 0);
    rows.step_context += std::exchange(rows.tail_context, 0);
    double seconds = (Seconds(rows) + more) * noise(random_);
    if (now_ < background_until_) seconds *= worker_.background_slowness;
    if (worker_.slowness) seconds *= worker_.slowness(now_);
    now_ += seconds;
    done_ += work;
    done_seconds_ += seconds;
  }

  void Round() {
    Arrive();
    Wake();
    EndLate();
    for (LaneDescription& lane : input_.lanes) {
      const auto takes = [](const LaneDescription::Member& one) { return one.takes_in_order; };
      const bool in_order = std::all_of(lane.members.begin(), lane.members.end(), takes);
      if (!lane.is_free && !in_order) OpenLayers(lane);
    }
    input_.now = now_;
    input_.free_dense_blocks = worker_.dense_blocks - dense_used_;
    input_.free_meta_blocks = worker_.meta_blocks - meta_used_;
    input_.free_table_rows = 2 * worker_.options.max_batch + 2 - rows_used_;
    if (worker_.options.preempts) BuildInBackground();
    AskForMemory();
    OfferMoreRows();
    input_.free_suspended_blocks = worker_.suspended_blocks - suspended_used_;
    const StepPlan plan = planner_(input_);
    ++result_.rounds;
    for (const uint64_t id : plan.suspend) Suspend(id);
    for (const uint64_t id : plan.grow) Grow(id);
    for (const uint64_t id : plan.resume) Resume(id);
    for (const uint64_t id : plan.admit) Admit(id);
    for (const StepPlan::Group& group : plan.begin) Begin(group);
    for (const StepPlan::Pass& pass : plan.passes) Pass(pass);
    for (const uint64_t id : plan.finish) Finish(id);
    Decode(plan);
    if (done_seconds_ > 0) observer_(done_, done_seconds_);
    done_ = {};
    done_seconds_ = 0;
    if (plan.passes.empty() && plan.decode.empty()) {
      Idle(plan);
    } else {
      now_ += kRoundSeconds;
    }
  }

  // Goes on to what comes next.
  void Idle(const StepPlan& plan) {
    if (!plan.empty()) return;
    double next = next_ < result_.requests.size() ? result_.requests[next_].arrival : kNever;
    bool waits_for_itself = Live().empty();
    for (const RequestDescription& request : Live()) {
      if (waits_until_[request.id] != kNever) waits_for_itself = true;
      next = std::min(next, waits_until_[request.id]);
      if (request.phase == RequestPhase::kDecoding && request.free_tokens > 0) {
        Break("nothing planned beside a decoding one");
      }
      for (const LaneDescription& lane : input_.lanes) {
        if (request.phase != RequestPhase::kReady || !lane.is_free) continue;
        if (request.prompt_tokens <= lane.max_tokens) Break("nothing planned beside a ready one");
      }
    }
    if (!waits_for_itself) Break("nothing planned although all of the memory is free");
    if (next == kNever) Break("nothing will ever happen");
    if (!Live().empty()) result_.idle += next - now_;
    now_ = std::max(now_, next);
  }

  void Suspend(uint64_t id) {
    RequestDescription* const request = Find(id);
    if (request == nullptr || request->phase != RequestPhase::kDecoding || !request->can_suspend) {
      return Break("a request is suspended that cannot be");
    }
    suspended_used_ += request->suspended_blocks;
    if (suspended_used_ > worker_.suspended_blocks) Break("too much memory of the host");
    request->phase = RequestPhase::kLeaving;
    request->suspended_since = now_;
    ++result_.requests[id].suspensions;
    ++request->num_suspensions;
    waits_until_[id] = now_ + kCopySeconds * request->suspended_blocks;
  }

  void Resume(uint64_t id) {
    RequestDescription* const request = Find(id);
    if (request == nullptr || request->phase != RequestPhase::kSuspended) {
      return Break("one comes back that was not away");
    }
    TakeMemory(*request);
    request->phase = RequestPhase::kReturning;
    waits_until_[id] = now_ + kCopySeconds * request->suspended_blocks;
  }

  void TakeMemory(const RequestDescription& request) {
    dense_used_ += request.dense_blocks;
    meta_used_ += request.meta_blocks;
    if (dense_used_ > worker_.dense_blocks) Break("too many dense blocks");
    if (meta_used_ > worker_.meta_blocks) Break("too many meta blocks");
    if (++rows_used_ > 2 * worker_.options.max_batch + 2) Break("too many rows");
  }

  void Admit(uint64_t id) {
    RequestDescription* const request = Find(id);
    if (request == nullptr || request->phase != RequestPhase::kWaiting)
      return Break("admitted twice");
    TakeMemory(*request);
    request->phase = request->asks_store ? RequestPhase::kReserving : RequestPhase::kReady;
    if (request->asks_store) waits_until_[id] = now_ + kStoreSeconds;
  }

  void Begin(const StepPlan::Group& group) {
    LaneDescription& lane = input_.lanes[group.lane];
    if (!lane.is_free) return Break("a lane that is not free");
    lane.is_free = false;
    lane.layer = 0;
    lane.next_row = 0;
    lane.layers_open = worker_.options.num_layers;
    int64_t tokens = 0;
    for (const uint64_t id : group.members) {
      RequestDescription* const request = Find(id);
      if (request == nullptr || request->phase != RequestPhase::kReady) return Break("not ready");
      request->phase = RequestPhase::kReading;
      lane.members.push_back(MemberOf(*request));
      tokens += request->prompt_tokens;
      if (!request->takes_in_order) lane.layers_open = 2;
    }
    if (tokens > lane.max_tokens) Break("a lane that is too small");
    lane_members_left_[group.lane] = static_cast<int64_t>(group.members.size());
  }

  void Pass(const StepPlan::Pass& pass) {
    LaneDescription& lane = input_.lanes[pass.lane];
    if (lane.members.empty() || pass.layer != lane.layer || pass.first_row != lane.next_row ||
        pass.num_rows < 1 || pass.num_rows > worker_.options.max_rows ||
        pass.layer >= lane.layers_open) {
      return Break("rows out of order");
    }
    const int64_t rows = GroupRows(lane);
    if (pass.first_row + pass.num_rows > rows) return Break("rows that are not there");
    Spend(pass.work, 0);
    for (const LaneDescription::Member& member : lane.members) {
      served_[member.tenant] += static_cast<double>(pass.num_rows) *
                                static_cast<double>(member.rows) / static_cast<double>(rows) /
                                worker_.options.num_layers;
    }
    lane.next_row += pass.num_rows;
    if (lane.next_row < rows) return;
    lane.next_row = 0;
    ++lane.layer;
    if (lane.layers_open < worker_.options.num_layers) {
      int64_t tokens = 0;
      for (const LaneDescription::Member& member : lane.members) tokens += member.rows;
      background_until_ = std::max(now_, background_until_) +
                          worker_.background_seconds_per_token * static_cast<double>(tokens);
      OpenLayers(lane);
    }
    if (lane.layer == worker_.options.num_layers) Read(lane);
  }

  // The layer that is computed now, and the next one once the background has taken the last one.
  void OpenLayers(LaneDescription& lane) const {
    lane.layers_open = std::max(lane.layer + (now_ < background_until_ ? 1 : 2), uint32_t{2});
  }

  int64_t GivenLeft(uint64_t id) const { return result_.requests[id].given_tokens - fed_[id]; }
  bool IsCold(uint64_t id) const {
    const SimulatedRequest& told = result_.requests[id];
    return told.text != 0 && LengthOf(id) == 0 && !attended_.contains(told.text);
  }

  // Given tokens that could share a step.
  void OfferMoreRows() {
    for (RequestDescription& request : Live()) {
      const uint64_t id = request.id;
      if (request.phase != RequestPhase::kDecoding) continue;
      request.cold_tokens = IsCold(id) ? result_.requests[id].text_tokens : 0;
      request.given_tokens = GivenLeft(id);
      request.more_rows = 0;
      request.measures_given = request.given_tokens > 0 || result_.requests[id].is_scoring;
      if (request.given_tokens > 0) {
        const int64_t most = fed_[id] == 0 ? worker_.first_rows : request.given_tokens;
        request.more_rows =
            std::min({request.given_tokens, most, std::max<int64_t>(1, request.free_tokens)}) - 1;
        continue;
      }
      if (request.phase != RequestPhase::kDecoding || !request.measures_given) continue;
      const int64_t left = result_.requests[request.id].output_tokens - generated_[request.id];
      request.more_rows = std::min(left, std::max<int64_t>(1, request.free_tokens)) - 1;
    }
  }

  // The group's prompts have their first tokens.
  void Read(const LaneDescription& lane) {
    const std::vector<LaneDescription::Member> members = lane.members;
    for (const LaneDescription::Member& member : members) {
      RequestDescription& request = *Find(member.id);
      request.context = result_.requests[member.id].text_tokens + request.prompt_tokens;
      if (request.given_tokens > 0) {
        LeaveLane(member.id);
        BeginDecoding(request);
        continue;
      }
      result_.requests[member.id].first_token = now_;
      if (hooks_.on_read) hooks_.on_read(member.id);
      if (Token(request)) {
        LeaveLane(member.id);
        End(member.id);
      } else if (request.takes_in_order) {
        LeaveLane(member.id);
        BeginDecoding(request);
      } else {
        request.phase = RequestPhase::kSettling;
        waits_until_[member.id] = now_ + kSettleSeconds;
      }
    }
  }

  void Finish(uint64_t id) {
    RequestDescription* const request = Find(id);
    if (request == nullptr || request->phase == RequestPhase::kDecoding) return;  // Read()
    if (!request->is_settled) return Break("finished before it is settled");
    LeaveLane(id);
    BeginDecoding(*request);
  }

  bool Token(const RequestDescription& request) {
    SimulatedRequest& told = result_.requests[request.id];
    if (generated_[request.id] > 0) {
      result_.gaps.push_back(now_ - last_token_[request.id]);
      told.longest_gap = std::max(told.longest_gap, result_.gaps.back());
    }
    last_token_[request.id] = now_;
    served_[request.tenant] += 1;
    return ++generated_[request.id] >= told.output_tokens;
  }

  void End(uint64_t id) {
    const auto found = std::find_if(Live().begin(), Live().end(),
                                    [id](const auto& request) { return request.id == id; });
    if (found->phase != RequestPhase::kWaiting) {
      FreeMemory(*found);
      if (found->wants_extents) arena_used_ -= ArenaTokens(worker_, result_.requests[id]);
    }
    if (hooks_.on_end) hooks_.on_end(id);
    result_.requests[id].end = now_;
    Live().erase(found);
    const auto has_text = [&](const RequestDescription& one) {
      return one.phase >= RequestPhase::kReading &&
             result_.requests[one.id].text == result_.requests[id].text;
    };
    if (std::none_of(Live().begin(), Live().end(), has_text))
      attended_.erase(result_.requests[id].text);
    for (RequestDescription& request : Live()) request.arena_is_full = false;
    if (++num_ended_ == result_.requests.size() / 2) result_.served_at_half = served_;
  }

  // Seconds that the step's rows take beside those of as many answers' rows.
  double MoreOfRows(const std::vector<uint64_t>& decode) {
    double more = 0;
    for (const uint64_t id : decode) {
      const RequestDescription* const request = Find(id);
      if (request == nullptr) continue;
      const double row =
          Seconds({.step_rows = 1, .step_context = static_cast<double>(request->context)});
      if (GivenLeft(id) > 0) more += (worker_.tail_row - 1) * row;
      if (IsCold(id)) more += worker_.cold_row * row;
    }
    return more;
  }

  void Decode(const StepPlan& plan) {
    if (plan.decode.empty()) return;
    if (std::ssize(plan.decode) > worker_.options.max_batch) return Break("too many in a step");
    const double more = MoreOfRows(plan.decode);
    Spend(plan.step, more);
    ++result_.steps;
    for (const uint64_t id : plan.decode) attended_.insert(result_.requests[id].text);
    result_.step_rows += std::ssize(plan.decode);
    for (const RequestDescription& request : Live()) {
      result_.stalled_rows += request.phase == RequestPhase::kDecoding && request.free_tokens <= 0;
    }
    for (const uint64_t id : plan.decode) {
      RequestDescription* const request = Find(id);
      if (request == nullptr) continue;  // its first token was its last
      if (request->phase != RequestPhase::kDecoding) return Break("one that does not decode");
      if (reach_[id] <= LengthOf(id)) return Break("one without memory for its token");
      ++request->context;
      if (GivenLeft(id) > 0) {
        ++fed_[id];
        served_[request->tenant] += 1;
        if (GivenLeft(id) > 0) continue;
        result_.requests[id].first_token = now_;
        if (hooks_.on_read) hooks_.on_read(id);
      }
      request->tokens_left = result_.requests[id].max_tokens - generated_[id] - 1;
      request->tokens_generated = generated_[id] + 1;
      if (Token(*request)) End(id);
    }
  }

  const SimulatedWorker& worker_;
  const Planner& planner_;
  const Observer& observer_;
  const Hooks& hooks_;
  std::mt19937_64 random_;
  SimulationResult result_;
  SchedulerInput input_;
  double now_ = 0;
  Work done_;  // in this round
  double done_seconds_ = 0;
  double background_until_ = 0;
  size_t next_ = 0;
  size_t num_ended_ = 0;
  int64_t dense_used_ = 0, meta_used_ = 0, rows_used_ = 0, arena_used_ = 0, suspended_used_ = 0;
  std::vector<double> waits_until_, last_token_, served_;
  std::vector<int64_t> generated_, lane_members_left_;
  std::vector<int64_t> reach_;   // tokens behind the prompt that it has memory for
  std::vector<int64_t> fed_;     // of its tail
  std::set<uint64_t> attended_;  // texts that a step has attended to since somebody has had them
};

}  // namespace

double TrueSeconds(const Work& work) {
  constexpr std::array<double, Work::kParts> kCosts = {6e-3, 1e-4, 4e-8, 5e-5, 6.5e-7, 6e-12, 2e-9};
  const std::array<double, Work::kParts> parts = work.Parts();
  double seconds = 0;
  for (size_t i = 0; i < parts.size(); ++i) seconds += kCosts[i] * parts[i];
  return seconds;
}

SimulationResult Simulate(const SimulatedWorker& worker, std::vector<SimulatedRequest> requests,
                          const Planner& planner, const Observer& observer, uint64_t seed,
                          const Hooks& hooks) {
  return Simulation(worker, std::move(requests), planner, observer, seed, hooks).Run();
}

SimulationResult SimulateScheduler(const SimulatedWorker& worker,
                                   std::vector<SimulatedRequest> requests, uint64_t seed) {
  Scheduler scheduler(worker.options);
  return Simulate(
      worker, std::move(requests),
      [&](const SchedulerInput& input) { return scheduler.Plan(input); },
      [&](const Work& work, double seconds) { scheduler.costs().Observe(work, seconds); }, seed);
}

StepPlan FirstComeFirstServed::Plan(const SchedulerInput& input) {
  StepPlan plan;
  int64_t batch_rows = worker_.options.max_batch;
  int64_t dense = input.free_dense_blocks, rows = input.free_table_rows;
  std::vector<LaneDescription> lanes = input.lanes;
  for (const RequestDescription& request : input.requests) {
    batch_rows -= request.phase != RequestPhase::kWaiting;
    if (request.is_settled && request.phase == RequestPhase::kSettling) {
      plan.finish.push_back(request.id);
    }
    if (request.phase != RequestPhase::kDecoding) continue;
    plan.decode.push_back(request.id);
    plan.step.step_context += static_cast<double>(request.context);
  }
  plan.step.step_rows = static_cast<double>(plan.decode.size());
  plan.step.steps = plan.decode.empty() ? 0 : 1;
  for (const RequestDescription& request : input.requests) {
    if (request.phase != RequestPhase::kWaiting) continue;
    if (batch_rows-- <= 0 || request.dense_blocks > dense || rows-- <= 0 || request.arena_is_full)
      break;
    dense -= request.dense_blocks;
    plan.admit.push_back(request.id);
  }
  for (const RequestDescription& request : input.requests) {
    if (request.phase != RequestPhase::kReady) continue;
    for (size_t i = lanes.size(); i-- > 0;) {
      if (!lanes[i].is_free || request.prompt_tokens > lanes[i].max_tokens) continue;
      lanes[i].is_free = false;
      lanes[i].layer = 0;
      lanes[i].next_row = 0;
      lanes[i].layers_open = 2;
      lanes[i].members = {MemberOf(request)};
      plan.begin.push_back({i, {request.id}});
      break;
    }
  }
  for (size_t i = 0; i < lanes.size(); ++i) {
    const size_t index = (next_lane_ + i) % lanes.size();
    const LaneDescription& lane = lanes[index];
    if (lane.members.empty() || lane.layer >= worker_.options.num_layers ||
        lane.layer >= lane.layers_open) {
      continue;
    }
    const int64_t most = plan.decode.empty() ? 1024 : 256;
    StepPlan::Pass pass{.lane = index,
                        .layer = lane.layer,
                        .first_row = lane.next_row,
                        .num_rows = std::min(most, GroupRows(lane) - lane.next_row),
                        .work = {}};
    pass.work = WorkOfRows(lane, pass.first_row, pass.num_rows);
    plan.passes.push_back(pass);
    next_lane_ = index + 1;
    break;
  }
  return plan;
}

}  // namespace retroinfer::test_support
