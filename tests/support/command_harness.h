// A command runner on a small golden model, and commands for sequences of policy full.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu_worker/executor/command_runner.h"
#include "tests/support/executor_harness.h"

namespace retroinfer::test_support {

class CommandHarness {
 public:
  explicit CommandHarness(std::unique_ptr<Backend> backend) : executor_(std::move(backend)) {
    auto runner =
        CommandRunner::Create(executor_.executor(), executor_.store().arena(),
                              {.on_command = [this](const StepCommand&) { told_ += 'c'; },
                               .on_result = [this](const CommandResult&) { told_ += 'r'; }});
    RI_CHECK(runner.ok());
    runner_ = *std::move(runner);
  }

  ExecutorHarness& parts() { return executor_; }
  Executor& executor() { return executor_.executor(); }
  CommandRunner& runner() { return *runner_; }
  // A letter for each call of a hook.
  const std::string& told() const { return told_; }

  const CommandResult& CarryOut(StepCommand command) {
    runner_->CarryOut(command, result_);
    return result_;
  }
  // The same, once all that the command builds on is done.
  const CommandResult& CarryOutWhenReady(StepCommand command) {
    absl::StatusOr<bool> is_ready = runner_->IsReady(command);
    while (is_ready.ok() && !*is_ready) {
      std::this_thread::yield();
      runner_->Tend();
      is_ready = runner_->IsReady(command);
    }
    return CarryOut(std::move(command));
  }

  // Greedy; the prompts of ExecutorHarness::Make().
  StepCommand::Open Opening(uint64_t id, int64_t prompt_tokens, int64_t max_tokens,
                            PolicyKind policy = PolicyKind::kFull) const {
    StepCommand::Open open{.id = id, .total_tokens = prompt_tokens + max_tokens};
    for (int64_t i = 0; i < prompt_tokens; ++i) {
      open.prompt.push_back(
          static_cast<int32_t>((i * 31 + static_cast<int64_t>(id) * 7) % executor_.vocab_size()));
    }
    open.attention.policy = policy;
    open.sampling.temperature = 0;
    return open;
  }
  // Blocks of policy full for so many tokens.
  static KvBlocks BlocksFor(int64_t tokens) {
    const int64_t window = std::max<int64_t>(0, tokens - kSinkTokens);
    return {.dense =
                static_cast<int32_t>(1 + (window + kDenseBlockTokens - 1) / kDenseBlockTokens)};
  }
  void Admit(StepCommand::Open open) {
    const uint64_t id = open.id;
    const KvNeed need = runner_->PolicyOf(open.attention.policy, open.is_prompt_only)
                            .Need(open.attention, std::ssize(open.prompt), open.total_tokens);
    const KvBlocks blocks = {.dense = need.dense_blocks, .meta = need.meta_blocks};
    StepCommand opening;
    opening.open.push_back(std::move(open));
    RI_CHECK(CarryOut(std::move(opening)).refused.ok());
    const CommandResult& result = CarryOut({.admit = {{id, blocks}}});
    RI_CHECK(result.refused.ok() && result.without_memory.empty() && result.failed.empty());
  }
  // All passes of the sequence's prompt, in one lane. Returns what the last one gave.
  const CommandResult& Compute(uint64_t id, size_t lane = 0) {
    RI_CHECK(CarryOut({.begin = {{.lane = lane, .members = {id}}}}).refused.ok());
    const PrefillLane& at = executor().lane(lane);
    do {
      const StepPlan::Pass pass{
          .lane = lane,
          .layer = at.layer(),
          .first_row = at.next_row(),
          .num_rows = std::min(ExecutorHarness::kMaxRows, at.num_rows() - at.next_row())};
      RI_CHECK(CarryOutWhenReady({.passes = {pass}}).refused.ok());
    } while (result_.read.empty());
    return result_;
  }
  // Lets the sequence decode. Returns the token that follows its prompt.
  int32_t Read(StepCommand::Open open) {
    const uint64_t id = open.id;
    Admit(std::move(open));
    const int32_t first = Compute(id).read.front().first.token.token;
    RI_CHECK(CarryOutWhenReady({.finish = {id}}).finished.size() == 1);
    return first;
  }
  // Feeds the token, and returns the one that is drawn.
  int32_t Step(uint64_t id, int32_t token) {
    const int64_t position = runner_->Find(id)->kv.num_tokens;
    const CommandResult& result =
        CarryOut({.rows = {{.id = id, .token = token, .position = position}}});
    RI_CHECK(result.refused.ok() && result.step.ok());
    return result.rows.front().drawn.token.token;
  }
  // One step of these rows.
  const std::vector<CommandResult::Row>& StepOf(std::vector<StepCommand::Row> rows) {
    const CommandResult& result = CarryOut({.rows = std::move(rows)});
    RI_CHECK(result.refused.ok() && result.step.ok());
    return result.rows;
  }
  std::vector<int32_t> Decode(uint64_t id, int32_t token, int steps) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < steps; ++i) tokens.push_back(token = Step(id, token));
    return tokens;
  }

 private:
  ExecutorHarness executor_;
  std::string told_;
  std::unique_ptr<CommandRunner> runner_;
  CommandResult result_;
};

}  // namespace retroinfer::test_support
