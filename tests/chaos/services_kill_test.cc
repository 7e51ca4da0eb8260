// Kills the services at random moments, and the store at chosen moments of a write, under a load of
// concurrent requests; whatever dies, no durable segment is lost, no answer is wrong, nothing hangs
// and nothing leaks.
//
// RETROINFER_CHAOS_KILLS: kills at random moments (default 8). RETROINFER_CHAOS_MINUTES: goes on so
// long at least. RETROINFER_CHAOS_SEED: of everything random (default 1).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "build_paths.h"
#include "tests/chaos/chaos_load.h"

namespace retroinfer::test_support {
namespace {

constexpr int kClients = 3;
constexpr absl::Duration kStartMax = absl::Seconds(40);
constexpr absl::Duration kDrainMax = absl::Seconds(60);

uint64_t EnvNumber(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<uint64_t>(std::atoll(text));
}

class ServicesKillTest : public testing::Test {
 protected:
  static ServiceOptions Options(const std::vector<std::string>& extra) {
    ServiceOptions options = ChaosDocuments::Options();
    options.store_arguments = extra;
    return options;
  }

  void Start(bool deletes, const std::vector<std::string>& extra = {}) {
    processes_.emplace(Options(extra));
    processes_->options().store_arguments.insert(
        processes_->options().store_arguments.end(),
        {"--cache-dir", (processes_->folder() / "cache").string()});
    processes_->StartBoth();
    fingerprint_ = processes_->StoreStats().model_fingerprint();
    load_.emplace(*processes_, documents_, &problems_, kClients, seed_);
    notary_.emplace(*processes_, &problems_, deletes);
  }

  // Starts what is not there and waits until both serve. A process that ends by itself is started
  // again, as a supervisor does.
  void AwaitServing() {
    const absl::Time begin = absl::Now();
    while (!(processes_->StoreIsServing() && processes_->WorkerIsServing())) {
      StartDead();
      if (absl::Now() - begin > kStartMax) {
        problems_.Add("no start",
                      absl::StrCat("the services do not serve\n", processes_->store().Log(), "\n",
                                   processes_->worker().Log()));
        return;
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    load_->SetServingSince(absl::Now());
    longest_start_ = std::max(longest_start_, absl::Now() - begin);
  }
  void StartDead() {
    if (processes_->store().Wait(absl::ZeroDuration()).has_value()) {
      processes_->LaunchStore();
      ++unexpected_ends_;
    }
    if (processes_->worker().Wait(absl::ZeroDuration()).has_value()) {
      processes_->LaunchWorker();
      ++unexpected_ends_;
    }
  }

  // Kills one or both, leaves a gap, and starts what was killed.
  void Kill() {
    const uint64_t victim = random_() % 3;
    load_->SetServingSince(absl::InfiniteFuture());
    if (victim != 0) processes_->store().Kill();
    if (victim != 1) processes_->worker().Kill();
    absl::SleepFor(absl::Milliseconds(random_() % 300));
    if (victim != 0) processes_->LaunchStore();
    if (victim != 1) processes_->LaunchWorker();
    ++kills_;
    ++kills_of_[victim];
  }

  // Ends the load, then looks at what is left: in the arena, and on the disk for a new arena.
  void Finish(bool deletes) {
    AwaitServing();
    // On a slow machine kills may have followed so closely that nothing was answered between them.
    EXPECT_TRUE(Eventually([&] { return load_->counts().answered > 0; }, kDrainMax));
    load_->Stop();
    EXPECT_TRUE(Eventually([&] { return processes_->StoreStats().durable_queued_segments() == 0; },
                           kDrainMax));
    absl::SleepFor(absl::Milliseconds(200));  // the notary's last look
    notary_->Stop();
    EXPECT_EQ(processes_->WaitUntilNothingIsHeld(), "");
    const std::set<std::string> durable = notary_->acknowledged();
    processes_->worker().Kill();
    processes_->store().Kill();
    processes_->StartBoth();
    uint64_t checked = 0;
    for (size_t salt = 0; salt < num_salts_; ++salt) {
      for (size_t document = 0; document < documents_.size(); ++document) {
        checked += CheckDurable(document, ChaosDocuments::SaltName(salt), durable, deletes) ? 1 : 0;
      }
    }
    EXPECT_EQ(processes_->WaitUntilNothingIsHeld(), "");
    const kvstore::v1::GetStatsResponse stats = processes_->StoreStats();
    EXPECT_EQ(stats.durable_corrupt_total(), 0u);
    EXPECT_EQ(stats.durable_restore_failures_total(), 0u);
    if (!deletes) {
      EXPECT_GE(stats.durable_segments(), durable.size());
    }
    const ChaosLoad::Counts counts = load_->counts();
    std::printf(
        "seed %d: %d kills (%d of the worker, %d of the store, %d of both), %d other ends; %d "
        "answers, all right, %d told unavailable, %d tokens found in the cache; %zu durable "
        "segments, %d prefixes read back; longest start %.1f s, longest silence %.1f s\n",
        static_cast<int>(seed_), kills_, kills_of_[0], kills_of_[1], kills_of_[2], unexpected_ends_,
        static_cast<int>(counts.answered), static_cast<int>(counts.unavailable),
        static_cast<int>(counts.cached_tokens), durable.size(), static_cast<int>(checked),
        absl::ToDoubleSeconds(longest_start_), absl::ToDoubleSeconds(counts.longest_silence));
    EXPECT_EQ(problems_.ToString(), "");
  }

  // Asks for a document of which something is durable. Returns false if nothing is.
  bool CheckDurable(size_t document, const std::string& salt, const std::set<std::string>& durable,
                    bool deletes) {
    const int64_t tokens = DurableTokens(documents_, document, salt, fingerprint_, durable);
    if (tokens == 0) return false;
    GenerateStream stream(processes_->worker_stub(), documents_.Request(document, salt));
    EXPECT_TRUE(stream.Wait().ok()) << stream.Wait().error_message();
    EXPECT_EQ(stream.tokens(), documents_.answer(document));
    if (!deletes) {
      EXPECT_GE(stream.finished().cached_tokens(), tokens);
    }
    return true;
  }

  const uint64_t seed_ = EnvNumber("RETROINFER_CHAOS_SEED", 1);
  std::mt19937_64 random_{seed_};
  const ChaosDocuments documents_;
  Problems problems_;
  std::optional<ServiceProcesses> processes_;
  std::string fingerprint_;
  std::optional<ChaosLoad> load_;
  std::optional<DurabilityNotary> notary_;
  size_t num_salts_ = 1;
  int kills_ = 0;
  int kills_of_[3] = {};
  int unexpected_ends_ = 0;
  absl::Duration longest_start_;
};

TEST_F(ServicesKillTest, AtRandomMoments) {
  const int wanted = static_cast<int>(EnvNumber("RETROINFER_CHAOS_KILLS", 8));
  const absl::Time until =
      absl::Now() + absl::Minutes(static_cast<int64_t>(EnvNumber("RETROINFER_CHAOS_MINUTES", 0)));
  Start(/*deletes=*/false);
  while (kills_ < wanted || absl::Now() < until) {
    num_salts_ = 1 + static_cast<size_t>(kills_) / 5;
    load_->SetNumSalts(num_salts_);
    // Now and then somebody dies while the other one still starts.
    if (random_() % 4 != 0) {
      AwaitServing();
      absl::SleepFor(absl::Milliseconds(random_() % 2500));
    } else {
      absl::SleepFor(absl::Milliseconds(random_() % 400));
      StartDead();
    }
    Kill();
    if (kills_ % 20 == 0) {
      std::printf("%d kills, %d answers\n", kills_, static_cast<int>(load_->counts().answered));
      std::fflush(stdout);
    }
  }
  Finish(/*deletes=*/false);
}

class ServicesCrashPointTest : public ServicesKillTest {
 protected:
  // Starts a store that dies at that moment of its work, and waits until it did.
  void DieAt(const std::string& crash_point) {
    AwaitServing();
    load_->SetServingSince(absl::InfiniteFuture());
    processes_->store().Kill();
    const std::vector<std::string> program = processes_->options().store_program;
    processes_->options().store_program = {"/usr/bin/env", "RETROINFER_CRASH_POINT=" + crash_point,
                                           RETROINFER_BINARY_DIR
                                           "/tests/bin/faulty_kv_store_service"};
    processes_->LaunchStore();
    processes_->options().store_program = program;
    load_->SetNumSalts(++num_salts_);  // something new to write
    const auto status = processes_->store().Wait(kStartMax);
    EXPECT_TRUE(status.has_value() && WIFSIGNALED(*status)) << crash_point << " was not reached";
    processes_->LaunchStore();
    ++kills_;
    ++kills_of_[1];
  }
};

TEST_F(ServicesCrashPointTest, InTheMiddleOfAWrite) {
  Start(/*deletes=*/false);
  for (const char* stage : {"put-begun", "put-half-payload", "put-payload", "put-committed"}) {
    for (const int nth : {1, 3}) DieAt(absl::StrCat(stage, ":", nth));
  }
  Finish(/*deletes=*/false);
}

TEST_F(ServicesCrashPointTest, InTheMiddleOfADeletion) {
  Start(/*deletes=*/true, {"--cache-bytes", "64MiB"});
  for (const int nth : {1, 2}) DieAt(absl::StrCat("delete-committed:", nth));
  Finish(/*deletes=*/true);
}

}  // namespace
}  // namespace retroinfer::test_support
