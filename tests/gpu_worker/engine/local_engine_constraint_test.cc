// Answers under a constraint, by a whole engine: whatever the model would say, only what the
// constraint allows is drawn, beside requests without one, and over suspensions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "build_paths.h"
#include "gpu_worker/engine/local_engine.h"
#include "nlohmann/json.hpp"
#include "tests/support/in_process_worker.h"
#include "tests/support/suspending.h"
#include "text/constraint/constraint_compiler.h"
#include "text/constraint/token_vocabulary.h"

namespace retroinfer {
namespace {

using constraint::ConstraintSpec;
using test_support::CollectingSink;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;

constexpr char kPerson[] = R"({"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["a", "bc", "def"]}, "maxItems": 3}},
    "required": ["name", "age", "tags"], "additionalProperties": false})";

class ConstraintTest : public testing::Test {
 protected:
  InProcessWorkerOptions Options() {
    InProcessWorkerOptions options;
    // Its tokenizer has the ids that the model has.
    options.model_folder = std::filesystem::path(RETROINFER_SOURCE_DIR) / "models/needle";
    options.max_batch = 4;
    options.preemption = true;
    options.on_plan = [this](const SchedulerInput& input, StepPlan& plan) {
      SuspendSome(input, plan);
    };
    return options;
  }
  // Every sixth time that a request could be.
  void SuspendSome(const SchedulerInput& input, StepPlan& plan) {
    if (!suspends_) return;
    int64_t free = input.free_suspended_blocks;
    for (const RequestDescription& request : input.requests) {
      if (!test_support::MaySuspend(plan, request) || request.suspended_blocks > free) continue;
      if (++chances_ % 6 != 0) continue;
      free -= request.suspended_blocks;
      plan.suspend.push_back(request.id);
    }
  }
  GenerationRequest Request(ConstraintSpec spec, uint64_t seed = 1) {
    GenerationRequest request =
        worker_.Greedy(RandomPrompt(40, worker_.config().vocab_size, seed), 400);
    request.sampling.temperature = 1;
    request.sampling.seed = seed;
    request.sampling.ignore_eos = false;
    auto compiled = compiler_.Compile(spec);
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    request.sampling.constraint = *std::move(compiled);
    return request;
  }
  static ConstraintSpec Schema(const std::string& text) {
    return {.form = ConstraintSpec::Form::kJsonSchema, .text = text};
  }
  static void ExpectPerson(const std::string& text) {
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << text;
    ASSERT_TRUE(json.is_object() && json.size() == 3) << text;
    EXPECT_TRUE(json["name"].is_string()) << text;
    ASSERT_TRUE(json["age"].is_number_integer()) << text;
    EXPECT_GE(json["age"].get<int>(), 0);
    EXPECT_LE(json["age"].get<int>(), 150);
    ASSERT_TRUE(json["tags"].is_array() && json["tags"].size() <= 3) << text;
    for (const auto& tag : json["tags"]) EXPECT_TRUE(tag == "a" || tag == "bc" || tag == "def");
  }

  std::atomic<bool> suspends_ = false;
  uint64_t chances_ = 0;  // the engine's thread
  InProcessWorker worker_{Options()};
  constraint::ConstraintCompiler compiler_{
      constraint::TokenVocabulary::Create(worker_.tokenizer(), worker_.generation().eos_token_ids,
                                          static_cast<int32_t>(worker_.config().vocab_size))};
};

TEST_F(ConstraintTest, AnAnswerIsOneOfTheChoicesAndEndsBehindIt) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const auto sink = worker_.Submit(Request(
        {.form = ConstraintSpec::Form::kChoices, .choices = {"yes", "no", "perhaps"}}, seed));
    const GenerationResult& result = sink->Wait();
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.reason, FinishReason::kStop);
    EXPECT_THAT(sink->text(), testing::AnyOf("yes", "no", "perhaps"));
  }
}

TEST_F(ConstraintTest, EveryAnswerMatchesItsSchemaBesideRequestsWithoutOne) {
  GenerationRequest free = worker_.Greedy(RandomPrompt(50, worker_.config().vocab_size, 9), 200);
  const std::vector<int32_t> alone = worker_.Generate(free);
  for (const bool suspends : {false, true}) {
    suspends_ = suspends;
    free.request_id = suspends ? "with suspensions" : "beside others";
    const auto beside = worker_.Submit(free);
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (uint64_t seed = 0; seed < 12; ++seed) {
      sinks.push_back(worker_.Submit(Request(Schema(kPerson), seed)));
    }
    int32_t suspensions = 0;
    for (const auto& sink : sinks) {
      const GenerationResult& result = sink->Wait();
      ASSERT_TRUE(result.status.ok()) << result.status;
      suspensions += result.num_suspensions;
      EXPECT_EQ(result.reason, FinishReason::kStop);
      ExpectPerson(sink->text());
    }
    beside->Wait();
    EXPECT_EQ(beside->tokens(), alone);
    EXPECT_EQ(suspensions > 0, suspends);
  }
}

// The same seed gives the same answer, alone and beside others, suspended or not.
TEST_F(ConstraintTest, AnAnswerDependsOnItsRequestAlone) {
  std::vector<std::string> texts;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto sink = worker_.Submit(Request(Schema(kPerson), seed));
    sink->Wait();
    texts.push_back(sink->text());
  }
  suspends_ = true;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    sinks.push_back(worker_.Submit(Request(Schema(kPerson), seed)));
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    sinks[i]->Wait();
    EXPECT_EQ(sinks[i]->text(), texts[i]);
  }
}

TEST_F(ConstraintTest, AnAnswerThatIsCutIsTheBeginningOfOne) {
  GenerationRequest request = Request({.form = ConstraintSpec::Form::kRegex, .text = "(ab)*c"});
  request.sampling.logit_bias = {};
  request.sampling.max_tokens = 1;
  const auto sink = worker_.Submit(request);
  EXPECT_THAT(sink->Wait().reason, testing::AnyOf(FinishReason::kLength, FinishReason::kStop));
  EXPECT_TRUE(std::regex_match(sink->text(), std::regex("(ab)*(a|c)?"))) << sink->text();
}

TEST_F(ConstraintTest, ThoughtsComeFirst) {
  ConstraintSpec spec{.form = ConstraintSpec::Form::kChoices, .choices = {"left", "right"}};
  spec.thoughts = constraint::Thoughts{.open = "", .close = "."};
  const auto sink = worker_.Submit(Request(spec, 3));
  const GenerationResult& result = sink->Wait();
  ASSERT_TRUE(result.status.ok()) << result.status;
  const std::string text = sink->text();
  const size_t close = text.find('.');
  if (result.reason == FinishReason::kStop) {
    ASSERT_NE(close, std::string::npos) << text;
    EXPECT_TRUE(std::regex_match(text.substr(close), std::regex("\\.\\s*(left|right)"))) << text;
  } else {
    EXPECT_EQ(result.reason, FinishReason::kLength);
  }
}

}  // namespace
}  // namespace retroinfer
