// An executor in another process, which gets serialised commands and nothing else, does what the
// engine's own executor does: the results of all commands are the same, byte for byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "gpu_worker/executor/result_codec.h"
#include "tests/support/commanded_options.h"
#include "tests/support/message_socket.h"
#include "tests/support/suspending.h"

namespace retroinfer {
namespace {

using namespace test_support;

// The other process: what is sent to it is answered in order.
class CommandedProcess {
 public:
  CommandedProcess() {
    int ends[2];
    RI_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 3);
    std::string program = RETROINFER_BINARY_DIR "/tests/bin/commanded_executor";
    char* const arguments[] = {program.data(), nullptr};
    RI_CHECK(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    socket_ = std::make_unique<MessageSocket>(ends[0]);
    receiver_ = std::thread([this] {
      while (std::optional<std::string> answer = socket_->Receive()) {
        answers_.push_back(*std::move(answer));
      }
    });
  }
  ~CommandedProcess() {
    if (receiver_.joinable()) End();
  }

  void Send(std::string_view message) { EXPECT_TRUE(socket_->Send(message)); }
  // Waits until all is answered, and for the end of the process.
  const std::vector<std::string>& End() {
    socket_->EndSending();
    receiver_.join();
    int status = -1;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    return answers_;
  }

 private:
  pid_t pid_ = -1;
  std::unique_ptr<MessageSocket> socket_;
  std::vector<std::string> answers_;  // the receiver's until it has ended
  std::thread receiver_;
};

// What commands of a run have been about.
struct Seen {
  size_t commands = 0, cached_segments = 0, cached_blocks = 0, suspended = 0, measured = 0;
  size_t saved = 0, lengthened = 0, rewound = 0, parts = 0, largest_batch = 0, policies = 0;
  size_t accepted = 0, rejected = 0;  // drafts
};

class CommandedProcessTest : public testing::Test {
 protected:
  CommandedProcessTest() {
    InProcessWorkerOptions options = CommandedOptions();
    options.drafts = true;
    options.hooks = {.on_command =
                         [this](const StepCommand& command) {
                           Count(command);
                           const auto message = EncodeCommand(command);
                           RI_CHECK(message.ok());
                           sent_.push_back(*message);
                           process_.Send(*message);
                         },
                     .on_result =
                         [this](const CommandResult& result) {
                           Count(result);
                           results_.push_back(EncodeResult(result));
                         }};
    options.on_plan = [this](const SchedulerInput& input, StepPlan& plan) {
      Suspend(input, plan);
      if (plans_all_drafts_) PlanAllDrafts(input, plan);
    };
    worker_ = std::make_unique<InProcessWorker>(options);
  }

  GenerationRequest Request(int64_t prompt_tokens, int32_t max_tokens, uint64_t seed,
                            PolicyKind policy) {
    GenerationRequest request = worker_->Greedy(
        RandomPrompt(prompt_tokens, worker_->config().vocab_size, seed), max_tokens, policy);
    request.sampling.num_logprobs = 2;
    return request;
  }
  void Run(std::vector<GenerationRequest> requests) {
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (GenerationRequest& request : requests)
      sinks.push_back(worker_->Submit(std::move(request)));
    for (const auto& sink : sinks) EXPECT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
    EXPECT_TRUE(worker_->WaitUntilIdle());
  }
  // Ends both, and compares what they did.
  Seen Compare() {
    worker_->EndEngine();
    const std::vector<std::string>& answers = process_.End();
    EXPECT_EQ(answers.size(), results_.size());
    const CodecLimits limits = CommandedLimits(worker_->config());
    for (size_t i = 0; i < std::min(answers.size(), results_.size()); ++i) {
      if (answers[i] == results_[i]) continue;
      const auto theirs = DecodeResult(answers[i], limits);
      ADD_FAILURE() << "command " << i << " of " << results_.size() << ": "
                    << (theirs.ok() ? theirs->refused : theirs.status());
      break;
    }
    return seen_;
  }
  void SuspendOneIn(uint64_t one_in) { suspend_one_in_ = one_in; }
  // The scheduler plans drafts by measured times, which differ from run to run; from now on all
  // drafts that the batch has room for are fed.
  void FeedAllDrafts() { plans_all_drafts_ = true; }

 private:
  void Count(const StepCommand& command) {
    ++seen_.commands;
    for (const StepCommand::Claim& claim : command.claim) {
      seen_.cached_segments += claim.num_cached_segments;
      seen_.cached_blocks += claim.cached.size() - claim.num_cached_segments;
    }
    for (const StepCommand::Open& open : command.open) {
      seen_.policies |= size_t{1} << static_cast<size_t>(open.attention.policy);
    }
    seen_.suspended += command.suspend.size();
    seen_.measured += command.measure.size();
    seen_.saved += command.save.size();
    seen_.lengthened += command.lengthen.size();
    seen_.rewound += command.rewind.size();
    seen_.parts += command.begin.size();
    seen_.largest_batch = std::max(seen_.largest_batch, command.rows.size());
  }
  void Count(const CommandResult& result) {
    for (size_t i = 1; i < result.rows.size(); ++i) {
      const bool is_draft = result.rows[i].id == result.rows[i - 1].id;
      seen_.accepted += is_draft && !result.rows[i].is_rejected ? 1 : 0;
      seen_.rejected += is_draft && result.rows[i].is_rejected ? 1 : 0;
    }
  }
  void Suspend(const SchedulerInput& input, StepPlan& plan) {
    const uint64_t one_in = suspend_one_in_;
    int64_t free = input.free_suspended_blocks;
    for (const RequestDescription& request : input.requests) {
      if (one_in == 0 || request.suspended_blocks > free) continue;
      if (!MaySuspend(plan, request) || random_() % one_in != 0) continue;
      free -= request.suspended_blocks;
      plan.suspend.push_back(request.id);
    }
  }
  static void PlanAllDrafts(const SchedulerInput& input, StepPlan& plan) {
    const auto max_batch = static_cast<size_t>(CommandedOptions().max_batch);
    for (const RequestDescription& request : input.requests) {
      if (request.measures_given || request.draft_chance <= 0) continue;
      const auto rows = std::count(plan.decode.begin(), plan.decode.end(), request.id);
      if (rows == 0) continue;
      const auto missing = static_cast<size_t>(1 + request.more_rows - rows);
      const size_t free_rows = max_batch - plan.decode.size();
      plan.decode.insert(plan.decode.end(), std::min(missing, free_rows), request.id);
    }
  }

 protected:
  std::vector<std::string> sent_;  // of the engine's thread until the engine has ended

 private:
  CommandedProcess process_;
  Seen seen_;
  std::vector<std::string> results_;
  std::atomic<uint64_t> suspend_one_in_ = 0;
  std::atomic<bool> plans_all_drafts_ = false;
  std::mt19937_64 random_{17};

 protected:
  std::unique_ptr<InProcessWorker> worker_;
};

constexpr PolicyKind kAll[] = {PolicyKind::kFull, PolicyKind::kWave, PolicyKind::kStreaming};

TEST_F(CommandedProcessTest, PromptsOfAllPoliciesAndWhatFollowsThem) {
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 9; ++i) {
    requests.push_back(Request(200 + 900 * static_cast<int64_t>(i), 40, i, kAll[i % 3]));
  }
  requests[1].sampling.temperature = 0.8f;
  requests[1].sampling.seed = 11;
  requests[4].sampling.temperature = 1.2f;
  requests[4].sampling.top_p = 0.9f;
  requests[4].sampling.top_k = 40;
  requests[4].sampling.seed = ~uint64_t{0};
  requests[5].sampling.frequency_penalty = 0.5f;
  requests[5].sampling.repetition_penalty = 1.2f;
  requests[6].sampling.logit_bias = {{3, 5.0f}, {4, -100.0f}};
  requests[6].sampling.temperature = 0.5f;
  requests[7].sampling.min_tokens = 20;
  requests[7].sampling.stop_token_ids = {5, 6};
  requests[7].sampling.temperature = 2;
  Run(std::move(requests));
  const Seen seen = Compare();
  EXPECT_EQ(seen.policies, 7u);
  EXPECT_GT(seen.largest_batch, 2u);
}

TEST_F(CommandedProcessTest, WhatIsReadAgainIsThereInBoth) {
  std::vector<GenerationRequest> turns;
  for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull}) {
    GenerationRequest first = Request(5000, 150, 1, policy);
    first.reuse = KvReuse::kGenerated;
    GenerationRequest second = first;
    Run({first});
    turns.clear();
    for (uint64_t i = 0; i < 3; ++i) {
      GenerationRequest turn = second;
      turn.request_id = std::string(PolicyName(policy)) + std::to_string(i);
      const std::vector<int32_t> more = RandomPrompt(30, worker_->config().vocab_size, 50 + i);
      turn.prompt.insert(turn.prompt.end(), more.begin(), more.end());
      turns.push_back(std::move(turn));
    }
    Run(turns);
  }
  const Seen seen = Compare();
  EXPECT_GT(seen.cached_segments, 0u);
  EXPECT_GT(seen.cached_blocks, 0u);
  EXPECT_GT(seen.saved, 0u);
}

TEST_F(CommandedProcessTest, SequencesThatAreSuspended) {
  SuspendOneIn(20);
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 6; ++i) {
    requests.push_back(Request(1000 + 700 * static_cast<int64_t>(i), 200, i, kAll[i % 3]));
    requests.back().sampling.temperature = 1;
    requests.back().sampling.seed = i;
  }
  Run(std::move(requests));
  EXPECT_GT(Compare().suspended, 3u);
}

TEST_F(CommandedProcessTest, WhatIsMeasured) {
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 4; ++i) {
    GenerationRequest request = Request(600 + 900 * static_cast<int64_t>(i), 12, i, kAll[i % 2]);
    const auto tokens = [&](int64_t length, uint64_t seed) {
      return RandomPrompt(length, worker_->config().vocab_size, seed);
    };
    request.continuations = {tokens(12, 7), tokens(1, 8), tokens(5, 9)};
    requests.push_back(std::move(request));
  }
  GenerationRequest about_prompt = Request(500, 0, 9, PolicyKind::kFull);
  about_prompt.num_prompt_logprobs = 1;
  requests.push_back(about_prompt);
  GenerationRequest both = Request(700, 10, 10, PolicyKind::kWave);
  both.num_prompt_logprobs = 0;
  requests.push_back(both);
  Run(std::move(requests));
  const Seen seen = Compare();
  EXPECT_GT(seen.measured, 0u);
  EXPECT_GT(seen.rewound, 0u);
}

TEST_F(CommandedProcessTest, DraftsAreAcceptedAlike) {
  SuspendOneIn(50);
  FeedAllDrafts();
  for (const PolicyKind policy : kAll) {
    GenerationRequest greedy = Request(2100, 600, 3, policy), drawn = Request(500, 400, 4, policy);
    drawn.sampling.temperature = 0.7f;
    drawn.sampling.presence_penalty = 0.2f;
    for (int32_t token = 40; token < 44; ++token) drawn.sampling.logit_bias[token] = 30;
    Run({greedy, drawn});
  }
  const Seen seen = Compare();
  EXPECT_GT(seen.accepted, 20u);
  EXPECT_GT(seen.rejected, 5u);
}

TEST_F(CommandedProcessTest, AnswersOfUnnamedLength) {
  std::vector<GenerationRequest> requests;
  for (const PolicyKind policy : {PolicyKind::kFull, PolicyKind::kWave}) {
    requests.push_back(Request(1500, 3000, 4, policy));
    requests.back().open_ended = true;
  }
  Run(std::move(requests));
  EXPECT_GT(Compare().lengthened, 0u);
}

// Messages that were cut, changed, or come twice: each is answered, and none ends the process.
TEST(CommandedProcessHostileTest, WhatCannotBeIsRefused) {
  std::vector<std::string> real;
  {
    InProcessWorkerOptions options = CommandedOptions();
    options.hooks.on_command = [&real](const StepCommand& command) {
      real.push_back(EncodeCommand(command).value());
    };
    InProcessWorker worker(options);
    for (const PolicyKind policy : kAll) {
      GenerationRequest request =
          worker.Greedy(RandomPrompt(3000, worker.config().vocab_size, 3), 12, policy);
      EXPECT_TRUE(worker.Submit(std::move(request))->Wait().status.ok());
    }
    EXPECT_TRUE(worker.WaitUntilIdle());
    worker.EndEngine();
  }
  CommandedProcess process;
  std::mt19937_64 random(5);
  size_t num_sent = 0;
  const auto send = [&](std::string_view message) {
    process.Send(message);
    ++num_sent;
  };
  for (const std::string& message : real) {
    for (int i = 0; i < 3; ++i) {
      std::string changed = message;
      if (!changed.empty()) changed.resize(random() % changed.size());
      send(changed);
      changed = message;
      if (!changed.empty()) changed[random() % changed.size()] ^= static_cast<char>(random() | 1);
      send(changed);
    }
    send(message);
    send(message);
  }
  const std::vector<std::string>& answers = process.End();
  EXPECT_EQ(answers.size(), num_sent);
  size_t num_refused = 0;
  for (const std::string& answer : answers) {
    const auto result =
        DecodeResult(answer, {.vocab_size = 1 << 20, .max_model_len = int64_t{1} << 20});
    ASSERT_TRUE(result.ok()) << result.status();
    num_refused += result->refused.ok() ? 0 : 1;
  }
  EXPECT_GT(num_refused, num_sent / 3);
}

}  // namespace
}  // namespace retroinfer
