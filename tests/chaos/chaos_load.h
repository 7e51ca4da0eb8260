// A load of generation requests whose answers are known, and a list of what must not get lost.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {

// Prompts of 2 to 5 segments, some of which begin alike; half of them with greedy answers, half
// with answers drawn from the whole distribution, in which the least change of a logit shows.
class ChaosDocuments {
 public:
  static constexpr int64_t kDenseBelow = 1024;  // for the worker

  // Computes the right answers with services of its own that have no disk.
  ChaosDocuments();

  size_t size() const { return prompts_.size(); }
  const std::vector<int32_t>& prompt(size_t document) const { return prompts_[document]; }
  const std::vector<int32_t>& answer(size_t document) const { return answers_[document]; }
  generation::v1::GenerateRequest Request(size_t document, const std::string& salt) const;

  static std::string SaltName(size_t salt) { return "tenant " + std::to_string(salt); }
  // Arguments for services that serve them.
  static ServiceOptions Options();

 private:
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<std::vector<int32_t>> answers_;
};

// Everything that went wrong, each kind once with its number.
//
// Threads: all methods on any thread.
class Problems {
 public:
  void Add(const std::string& kind, const std::string& detail);
  // Empty if there were none.
  std::string ToString() const;

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, std::pair<int, std::string>> problems_ ABSL_GUARDED_BY(mutex_);
};

// Clients that ask until they are told to stop, and try again when the service is away.
//
// Threads: all methods on any thread.
// Owns:    the clients' threads.
class ChaosLoad {
 public:
  struct Counts {
    uint64_t answered = 0;
    uint64_t unavailable = 0;
    uint64_t cached_tokens = 0;
    absl::Duration longest_silence;  // of a stream, while both services served
  };

  // REQUIRES: all outlive this object.
  ChaosLoad(const ServiceProcesses& processes, const ChaosDocuments& documents, Problems* problems,
            int num_clients, uint64_t seed);
  ~ChaosLoad() { Stop(); }
  void Stop();

  // Tells the clients since when both services serve; InfiniteFuture: they do not.
  void SetServingSince(absl::Time time) { serving_since_ = absl::ToUnixNanos(time); }
  // Salts below this number are in use, the newest ones most.
  void SetNumSalts(size_t num_salts) { num_salts_ = num_salts; }

  Counts counts() const;

 private:
  void Run(uint64_t seed);
  void Ask(generation::v1::GenerationService::Stub& stub, size_t document, size_t salt);

  const ServiceProcesses& processes_;
  const ChaosDocuments& documents_;
  Problems& problems_;
  std::atomic<int64_t> serving_since_;
  std::atomic<size_t> num_salts_{1};
  std::atomic<bool> stop_{false};
  mutable absl::Mutex mutex_;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

// Asks the store again and again which segments are durable: one that was named once must be named
// ever after, by every later store. Also minds the counters of damage.
//
// Threads: all methods on any thread.
// Owns:    a thread.
class DurabilityNotary {
 public:
  // With `deletes` the store may delete segments.
  DurabilityNotary(const ServiceProcesses& processes, Problems* problems, bool deletes);
  ~DurabilityNotary() { Stop(); }
  void Stop();

  std::set<std::string> acknowledged() const;

 private:
  void Run();

  const ServiceProcesses& processes_;
  Problems& problems_;
  const bool deletes_;
  std::atomic<bool> stop_{false};
  mutable absl::Mutex mutex_;
  std::set<std::string> acknowledged_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// Returns how many leading tokens of the document's segments are in `names`.
int64_t DurableTokens(const ChaosDocuments& documents, size_t document, const std::string& salt,
                      const std::string& fingerprint, const std::set<std::string>& names);

}  // namespace retroinfer::test_support
