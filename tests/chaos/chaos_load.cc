#include "tests/chaos/chaos_load.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/log/check.h"
#include "gpu_worker/wave_index/named_prefix.h"

namespace retroinfer::test_support {
namespace {

namespace v1 = generation::v1;

constexpr int32_t kOutput = 24;
constexpr int kBases = 3;
constexpr int kEndsPerBase = 2;
constexpr absl::Duration kPoll = absl::Milliseconds(10);
constexpr absl::Duration kSilenceMax = absl::Seconds(10);

}  // namespace

ServiceOptions ChaosDocuments::Options() {
  ServiceOptions options;
  options.arena_bytes = "128MiB";  // of a few documents: segments are evicted all the time
  options.worker_arguments = {"--dense-below", std::to_string(kDenseBelow), "--dense-kv-bytes",
                              "96MiB"};
  return options;
}

ChaosDocuments::ChaosDocuments() {
  for (int base = 0; base < kBases; ++base) {
    const std::vector<int32_t> begin = RandomTokens(1200 + 1024 * static_cast<size_t>(base), base);
    for (int end = 0; end < kEndsPerBase; ++end) {
      std::vector<int32_t>& prompt = prompts_.emplace_back(begin);
      const auto tail = RandomTokens(1100 + 200 * static_cast<size_t>(end), 100 + base * 10 + end);
      prompt.insert(prompt.end(), tail.begin(), tail.end());
    }
  }
  ServiceProcesses processes(Options());
  processes.StartBoth();
  for (size_t i = 0; i < prompts_.size(); ++i) {
    answers_.push_back(Generate(processes.worker_stub(), Request(i, absl::StrCat("cold ", i))));
    RI_CHECK(answers_.back().size() == static_cast<size_t>(kOutput));
  }
}

v1::GenerateRequest ChaosDocuments::Request(size_t document, const std::string& salt) const {
  v1::GenerateRequest request = SampledRequest(prompts_[document], kOutput, 7);
  if (document % 2 == 0) request.mutable_sampling()->set_temperature(0);
  request.set_cache_salt(salt);
  request.set_return_progress(true);
  return request;
}

void Problems::Add(const std::string& kind, const std::string& detail) {
  std::fprintf(stderr, "PROBLEM %s: %s\n", kind.c_str(), detail.c_str());
  absl::MutexLock lock(&mutex_);
  auto& [count, first] = problems_[kind];
  if (++count == 1) first = detail;
}

std::string Problems::ToString() const {
  absl::MutexLock lock(&mutex_);
  std::string text;
  for (const auto& [kind, problem] : problems_) {
    absl::StrAppend(&text, problem.first, " x ", kind, " (first: ", problem.second, ")\n");
  }
  return text;
}

ChaosLoad::ChaosLoad(const ServiceProcesses& processes, const ChaosDocuments& documents,
                     Problems* problems, int num_clients, uint64_t seed)
    : processes_(processes),
      documents_(documents),
      problems_(*problems),
      serving_since_(absl::ToUnixNanos(absl::Now())) {
  for (int i = 0; i < num_clients; ++i) {
    threads_.emplace_back([this, seed, i] { Run(seed * 1000 + static_cast<uint64_t>(i)); });
  }
}

void ChaosLoad::Stop() {
  stop_ = true;
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

ChaosLoad::Counts ChaosLoad::counts() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

void ChaosLoad::Run(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto stub = processes_.NewWorkerStub();
  while (!stop_) {
    const size_t newest = num_salts_ - 1;
    const size_t age = random() % 8 == 0 ? random() % (newest + 1) : random() % 3;
    Ask(*stub, random() % documents_.size(), newest - std::min(age, newest));
  }
}

void ChaosLoad::Ask(v1::GenerationService::Stub& stub, size_t document, size_t salt) {
  GenerateStream stream(stub, documents_.Request(document, ChaosDocuments::SaltName(salt)));
  while (!stream.ended()) {
    absl::SleepFor(kPoll);
    const absl::Time since = absl::FromUnixNanos(serving_since_);
    const absl::Duration silence = absl::Now() - std::max(stream.last_event(), since);
    if (silence > kSilenceMax) {
      problems_.Add("hang", absl::StrCat("document ", document, ", salt ", salt, ", ",
                                         stream.num_tokens(), " tokens came"));
      return;
    }
    absl::MutexLock lock(&mutex_);
    counts_.longest_silence = std::max(counts_.longest_silence, silence);
  }
  const grpc::Status status = stream.Wait();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    absl::MutexLock lock(&mutex_);
    ++counts_.unavailable;
  } else if (!status.ok()) {
    problems_.Add("error", absl::StrCat(status.error_code(), " ", status.error_message()));
  } else if (stream.tokens() != documents_.answer(document)) {
    problems_.Add("wrong tokens", absl::StrCat("document ", document, ", salt ", salt, ", ",
                                               stream.finished().cached_tokens(), " cached"));
  } else {
    absl::MutexLock lock(&mutex_);
    ++counts_.answered;
    counts_.cached_tokens += static_cast<uint64_t>(stream.finished().cached_tokens());
    return;
  }
  absl::SleepFor(5 * kPoll);
}

DurabilityNotary::DurabilityNotary(const ServiceProcesses& processes, Problems* problems,
                                   bool deletes)
    : processes_(processes), problems_(*problems), deletes_(deletes) {
  thread_ = std::thread([this] { Run(); });
}

void DurabilityNotary::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

std::set<std::string> DurabilityNotary::acknowledged() const {
  absl::MutexLock lock(&mutex_);
  return acknowledged_;
}

void DurabilityNotary::Run() {
  const auto stub = processes_.NewStoreStub();
  while (!stop_) {
    absl::SleepFor(3 * kPoll);
    const auto names = DurableNames(*stub, absl::Seconds(2));
    if (!names.has_value()) continue;
    absl::MutexLock lock(&mutex_);
    for (const std::string& name : acknowledged_) {
      if (deletes_ || names->contains(name)) continue;
      problems_.Add("lost durable segment",
                    absl::StrCat(names->size(), " are left of ", acknowledged_.size()));
    }
    acknowledged_ = *names;
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(2)));
    kvstore::v1::GetStatsResponse stats;
    if (!stub->GetStats(&context, {}, &stats).ok()) continue;
    if (stats.durable_corrupt_total() > 0) problems_.Add("corrupt records", "");
    if (stats.durable_restore_failures_total() > 0) problems_.Add("failed restores", "");
    if (stats.segments_refused_total() > 0) problems_.Add("refused commits", "");
  }
}

int64_t DurableTokens(const ChaosDocuments& documents, size_t document, const std::string& salt,
                      const std::string& fingerprint, const std::set<std::string>& names) {
  const NamedPrefix prefix =
      NamePrefix(documents.prompt(document), ChaosDocuments::kDenseBelow, fingerprint, salt);
  int64_t tokens = 0;
  for (size_t i = 0; i < prefix.names.size(); ++i) {
    if (!names.contains(std::string(prefix.names[i].view()))) break;
    tokens += prefix.segments[i].num_tokens;
  }
  return tokens;
}

}  // namespace retroinfer::test_support
