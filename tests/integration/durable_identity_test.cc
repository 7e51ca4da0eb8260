// What a request finds, in the arena, on the disk, after a restart of either service or of both,
// changes nothing but time; and what was computed under other conditions is never found.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "build_paths.h"
#include "nlohmann/json.hpp"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

namespace fs = std::filesystem;
namespace v1 = generation::v1;

constexpr int32_t kOutput = 60;
constexpr size_t kPrompt = 4200;
constexpr int64_t kCached = 65 * 64;  // four segments and a block

class DurableIdentityTest : public testing::Test {
 protected:
  DurableIdentityTest() {
    ServiceOptions options;
    options.arena_bytes = "128MiB";
    options.worker_arguments = kWorkerArguments;
    processes_.emplace(options);
    processes_->options().store_arguments = {"--cache-dir",
                                             (processes_->folder() / "cache").string()};
    processes_->StartBoth();
  }

  struct Result {
    std::vector<int32_t> tokens;
    int64_t cached = 0;
    friend bool operator==(const Result&, const Result&) = default;
  };
  enum class Kind { kGreedy, kSampled, kFull };
  Result Run(Kind kind, const std::string& salt) {
    v1::GenerateRequest request =
        SampledRequest(RandomTokens(kPrompt, 5), kOutput, 7,
                       kind == Kind::kFull ? v1::ATTENTION_POLICY_FULL : v1::ATTENTION_POLICY_WAVE);
    if (kind != Kind::kSampled) request.mutable_sampling()->set_temperature(0);
    request.set_cache_salt(salt);
    GenerateStream stream(processes_->worker_stub(), request);
    EXPECT_TRUE(stream.Wait().ok()) << stream.Wait().error_message();
    EXPECT_EQ(stream.num_tokens(), size_t{kOutput});
    return {stream.tokens(), stream.finished().cached_tokens()};
  }
  void WaitUntilWritten() {
    // An answer may be complete before its last segment is: only then is nothing left to be queued.
    ASSERT_EQ(processes_->WaitUntilNothingIsHeld(absl::Minutes(1)), "");
    ASSERT_TRUE(
        Eventually([&] { return processes_->StoreStats().durable_queued_segments() == 0; }));
  }
  void RestartStore() {
    processes_->store().Kill();
    processes_->StartStore();
    ASSERT_TRUE(Eventually([&] { return processes_->ModelInfo().stats().store_attached(); }));
  }
  void RestartWorker() {
    processes_->worker().Kill();
    processes_->StartWorker();
  }
  void RestartBoth() {
    processes_->worker().Kill();
    processes_->store().Kill();
    processes_->StartBoth();
  }

  const std::vector<std::string> kWorkerArguments = {"--dense-below", "1024", "--dense-kv-bytes",
                                                     "64MiB"};
  std::optional<ServiceProcesses> processes_;
};

TEST_F(DurableIdentityTest, WhateverIsFoundWhereverTheTokensAreThoseOfAColdRun) {
  for (const Kind kind : {Kind::kGreedy, Kind::kSampled, Kind::kFull}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const std::string tenant = "tenant " + std::to_string(static_cast<int>(kind));
    const Result cold = Run(kind, "cold " + tenant);
    ASSERT_EQ(cold.cached, 0);
    const Result found = {cold.tokens, kCached};
    Run(Kind::kGreedy, tenant);
    WaitUntilWritten();
    EXPECT_EQ(Run(kind, tenant), found) << "in the arena";
    RestartStore();
    EXPECT_EQ(Run(kind, tenant), found) << "after a restart of the store";
    RestartWorker();
    EXPECT_EQ(Run(kind, tenant), found) << "after a restart of the worker";
    RestartBoth();
    EXPECT_EQ(Run(kind, tenant), found) << "from the disk";
    // Four segments and a block; the piece of a block at the prompt's end is of no use.
    EXPECT_GE(processes_->StoreStats().durable_restored_total(), 5u);
    EXPECT_LE(processes_->StoreStats().durable_restored_total(), 6u);
    RestartWorker();
    EXPECT_EQ(Run(kind, tenant), found) << "read from the disk, then a restart of the worker";
    RestartStore();
    EXPECT_EQ(Run(kind, tenant), found) << "and of the store";
  }
  EXPECT_EQ(processes_->WaitUntilNothingIsHeld(), "");
  EXPECT_EQ(processes_->StoreStats().durable_corrupt_total(), 0u);
}

struct Held {
  std::vector<int32_t> tokens;  // of all answers
  std::vector<int64_t> cached;  // by turn
  friend bool operator==(const Held&, const Held&) = default;
};

// Generated tokens are read back as they were made, so that the next turns are the same.
TEST_F(DurableIdentityTest, AConversationGoesOnAsItWasHeldWhateverWasRestarted) {
  const auto hold = [&](const std::string& salt, const std::function<void()>& between) {
    Held held;
    std::vector<int32_t> text = RandomTokens(2500, 9);
    for (uint64_t turn = 0; turn < 4; ++turn) {
      if (turn > 0) between();
      v1::GenerateRequest request = SampledRequest(text, 700, turn);
      request.set_reuse(v1::KV_REUSE_GENERATED);
      request.set_cache_salt(salt);
      GenerateStream stream(processes_->worker_stub(), request);
      EXPECT_TRUE(stream.Wait().ok()) << stream.Wait().error_message();
      const std::vector<int32_t> answer = stream.tokens();
      held.tokens.insert(held.tokens.end(), answer.begin(), answer.end());
      held.cached.push_back(stream.finished().cached_tokens());
      text.insert(text.end(), answer.begin(), answer.end());
      const std::vector<int32_t> user = RandomTokens(40, 20 + turn);
      text.insert(text.end(), user.begin(), user.end());
    }
    return held;
  };
  const Held alone = hold("alone", [] {});
  // All but the sink, and the answer's last token, which has no KV.
  EXPECT_EQ(alone.cached,
            (std::vector<int64_t>{0, 2500 + 700 - 5, 2500 + 1440 - 5, 2500 + 2180 - 5}));
  // What is still being saved when its process is killed is lost: each waits for the end of that.
  const auto after_writing = [&](const std::function<void()>& restart) {
    return [this, restart] {
      WaitUntilWritten();
      restart();
    };
  };
  EXPECT_EQ(hold("worker", after_writing([&] { RestartWorker(); })), alone);
  EXPECT_EQ(hold("store", after_writing([&] { RestartStore(); })), alone);
  EXPECT_EQ(hold("both", after_writing([&] { RestartBoth(); })), alone);
  EXPECT_EQ(processes_->StoreStats().durable_corrupt_total(), 0u);
}

TEST_F(DurableIdentityTest, WhatWasComputedUnderOtherConditionsIsNeverFound) {
  const Result cold = Run(Kind::kGreedy, "");
  WaitUntilWritten();
  RestartBoth();
  ASSERT_EQ(Run(Kind::kGreedy, ""), (Result{cold.tokens, kCached}));
  EXPECT_EQ(Run(Kind::kGreedy, "salt").cached, 0);

  // Each changes a copy of the model, or what the worker is told.
  struct Change {
    const char* name;
    std::function<void(const fs::path&)> model;
    std::vector<std::string> arguments;
  };
  const auto edit_config = [](const std::function<void(nlohmann::json&)>& edit) {
    return [edit](const fs::path& model) {
      nlohmann::json config;
      std::ifstream(model / "config.json") >> config;
      edit(config);
      std::ofstream(model / "config.json") << config;
    };
  };
  const auto keep = [](const fs::path&) {};
  const std::vector<Change> changes = {
      {"one bit of a weight",
       [](const fs::path& model) {
         std::fstream file(model / "model.safetensors",
                           std::ios::in | std::ios::out | std::ios::binary);
         file.seekg(-1000, std::ios::end);
         const char byte = static_cast<char>(file.get() ^ 1);
         file.seekp(-1000, std::ios::end);
         file.put(byte);
       },
       {}},
      {"RoPE theta",
       edit_config([](nlohmann::json& config) {
         config["rope_theta"] = config.value("rope_theta", 10000.0) * 2;
       }),
       {}},
      {"type of the pages", keep, {"--kv-dtype", "f32"}},
      {"type of the index", keep, {"--index-dtype", "int8"}},
      {"type of the arithmetic", keep, {"--compute-dtype", "f32"}},
      {"clustering", keep, {"--wave-index", "paper"}},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.name);
    const fs::path model = processes_->folder() / "model";
    fs::remove_all(model);
    fs::copy(RETROINFER_SOURCE_DIR "/models/needle", model, fs::copy_options::recursive);
    change.model(model);
    processes_->options().model_folder = model.string();
    processes_->options().worker_arguments = kWorkerArguments;
    processes_->options().worker_arguments.insert(processes_->options().worker_arguments.end(),
                                                  change.arguments.begin(), change.arguments.end());
    RestartBoth();
    EXPECT_EQ(Run(Kind::kGreedy, "").cached, 0);
    EXPECT_EQ(processes_->StoreStats().durable_restored_total(), 0u);
  }
  // A copy of the same model is the same model.
  processes_->options().worker_arguments = kWorkerArguments;
  processes_->options().model_folder = RETROINFER_SOURCE_DIR "/models/needle";
  RestartBoth();
  EXPECT_EQ(Run(Kind::kGreedy, ""), (Result{cold.tokens, kCached}));
}

}  // namespace
}  // namespace retroinfer::test_support
