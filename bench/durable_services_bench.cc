// What the disk tier costs and saves, through both services with the demo model:
//
// * time to the first token of a prompt of 32,768 tokens: computed, found in the arena, read back
//   from the disk into an empty arena (with the page cache dropped); tokens are checked to be the
//   same;
// * the same of a question of 64 tokens behind such a text that attends by the index
//   (docs/use/indexed-prefill.md): in the arena, and from the disk, where its first token waits for
//   the index and for what its steps ask for; how many bytes these are, and what the store had to
//   do for them. The text is random, or RETROINFER_BENCH_TEXT's, a file, and the questions follow
//   in it;
// * the decode of a stream beside a prefill of which every segment is written to the disk, against
//   the same without a disk, in turns.
//
// RETROINFER_BENCH_PART: "first-token", "indexed" or "decode" alone. RETROINFER_BENCH_ROUNDS:
// default 5. RETROINFER_BENCH_MODEL, RETROINFER_BENCH_MEMORY, RETROINFER_BENCH_TOKENS: another
// model, memory of the worker, and length of the text (and RETROINFER_BENCH_ARENA).
// RETROINFER_BENCH_STORE: another store; the one with a disk that tests can spoil reads segments as
// a whole if told so. Prints JSON with medians and ratios; exits with 1 if a token is wrong.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/support/measure.h"
#include "common/log/check.h"
#include "common/shm/unique_fd.h"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer {
namespace {

namespace v1 = generation::v1;
using test_support::GenerateStream;
using test_support::RandomTokens;
using test_support::SampledRequest;
using test_support::ServiceOptions;
using test_support::ServiceProcesses;

int EnvInt(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}
std::string EnvText(const char* name, const std::string& otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : text;
}
bool HasPart(std::string_view part) {
  const char* text = std::getenv("RETROINFER_BENCH_PART");
  return text == nullptr || text == part;
}

const size_t kPrompt =
    bench::IsSmoke() ? 9'000 : static_cast<size_t>(EnvInt("RETROINFER_BENCH_TOKENS", 32'768));
const int kRounds = bench::IsSmoke() ? 1 : EnvInt("RETROINFER_BENCH_ROUNDS", 5);
const int32_t kDecodeTokens = bench::IsSmoke() ? 60 : 600;
constexpr size_t kBesidePrompt = 9'000;  // of the prefill beside a decode
constexpr size_t kDecodePrompt = 9'000;

class Pair {
 public:
  explicit Pair(bool durable) : processes_(Options()) {
    cache_ = processes_.folder() / "cache";
    if (durable) processes_.options().store_arguments = {"--cache-dir", cache_.string()};
    processes_.StartBoth();
  }

  struct Answer {
    double ttft_seconds = 0;
    int64_t cached = 0;
    std::vector<int32_t> tokens;
  };
  Answer Ask(const std::vector<int32_t>& prompt, const std::string& salt, int32_t tail = 0) {
    v1::GenerateRequest request = Request(prompt, salt, 4);
    if (tail > 0) {
      request.mutable_attention()->set_prefill(v1::PREFILL_INDEXED);
      request.mutable_attention()->set_tail_tokens(tail);
    }
    GenerateStream stream(processes_.worker_stub(), request);
    const absl::Time begin = absl::Now();
    const grpc::Status status = stream.Wait();
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.error_message().c_str());
    RI_CHECK(status.ok());
    Answer answer;
    answer.ttft_seconds = absl::ToDoubleSeconds(stream.arrivals().front().time - begin);
    answer.cached = stream.finished().cached_tokens();
    answer.tokens = stream.tokens();
    return answer;
  }
  void WaitUntilWritten() {
    RI_CHECK(test_support::Eventually(
        [&] { return processes_.StoreStats().durable_queued_segments() == 0; }, absl::Minutes(2)));
  }
  void RestartBothCold() {
    processes_.worker().Kill();
    processes_.store().Kill();
    for (const auto& entry : std::filesystem::recursive_directory_iterator(cache_)) {
      if (!entry.is_regular_file()) continue;
      const common::UniqueFd file(::open(entry.path().c_str(), O_RDONLY));
      ::fdatasync(file.get());
      ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    }
    processes_.StartBoth();
    Ask(RandomTokens(200, 1), "");  // the first steps of a process are slow
  }

  // The first `num_tokens` tokens of a file.
  std::vector<int32_t> TokensOf(const std::string& path, size_t num_tokens) {
    std::ifstream file(path);
    v1::TokenizeRequest request;
    request.set_text({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
    v1::TokenizeResponse response;
    grpc::ClientContext context;
    RI_CHECK(processes_.worker_stub().Tokenize(&context, request, &response).ok());
    RI_CHECK(static_cast<size_t>(response.token_ids_size()) >= num_tokens);
    return {response.token_ids().begin(),
            response.token_ids().begin() + static_cast<std::ptrdiff_t>(num_tokens)};
  }

  struct Decode {
    double seconds_per_token = 0;
    double store_cpu_seconds = 0;  // until everything was written
    double worker_cpu_seconds = 0;
  };
  // Decodes, and has segments computed beside.
  Decode DecodeBesidePrefills(uint64_t seed) {
    const absl::Duration store_before = processes_.store().CpuTime();
    const absl::Duration worker_before = processes_.worker().CpuTime();
    GenerateStream decode(processes_.worker_stub(),
                          Request(RandomTokens(kDecodePrompt, 3), "", kDecodeTokens));
    RI_CHECK(decode.WaitForTokens(1));
    uint64_t prompts = 0;
    while (!decode.ended()) Ask(RandomTokens(kBesidePrompt, 1000 * seed + ++prompts), "");
    RI_CHECK(decode.Wait().ok());
    WaitUntilWritten();
    const auto arrivals = decode.arrivals();
    const absl::Duration span = arrivals.back().time - arrivals.front().time;
    return {absl::ToDoubleSeconds(span) / static_cast<double>(decode.num_tokens() - 1),
            absl::ToDoubleSeconds(processes_.store().CpuTime() - store_before),
            absl::ToDoubleSeconds(processes_.worker().CpuTime() - worker_before)};
  }
  // Of the store, since it was started.
  std::optional<double> Metric(const std::string& name) const {
    const std::string metrics = processes_.StoreMetrics();
    const size_t at = metrics.find("\n" + name + " ");
    if (at == std::string::npos) return std::nullopt;  // of another store
    return std::strtod(metrics.c_str() + at + name.size() + 2, nullptr);
  }
  kvstore::v1::GetStatsResponse stats() { return processes_.StoreStats(); }

 private:
  static ServiceOptions Options() {
    ServiceOptions options;
    options.arena_bytes = EnvText("RETROINFER_BENCH_ARENA", "1GiB");
    options.memory = EnvText("RETROINFER_BENCH_MEMORY", "1GiB");
    options.model_folder = EnvText("RETROINFER_BENCH_MODEL", options.model_folder);
    const std::string store = EnvText("RETROINFER_BENCH_STORE", "");
    if (!store.empty()) options.store_program = {store};
    return options;
  }
  static v1::GenerateRequest Request(const std::vector<int32_t>& prompt, const std::string& salt,
                                     int32_t max_tokens) {
    v1::GenerateRequest request = SampledRequest(prompt, max_tokens, 7);
    request.mutable_sampling()->set_temperature(0);
    request.set_cache_salt(salt);
    return request;
  }

  ServiceProcesses processes_;
  std::filesystem::path cache_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int MeasureFirstToken(nlohmann::json* report) {
  Pair pair(/*durable=*/true);
  const std::vector<int32_t> prompt = RandomTokens(kPrompt, 2);
  pair.Ask(RandomTokens(kPrompt, 9), "warm-up");
  std::vector<double> cold, arena, disk;
  for (int round = 0; round < kRounds; ++round) {
    const std::string salt = absl::StrCat("tenant ", round);
    const auto computed = pair.Ask(prompt, salt);
    pair.WaitUntilWritten();
    const auto found = pair.Ask(prompt, salt);
    pair.RestartBothCold();
    const auto restored = pair.Ask(prompt, salt);
    if (found.tokens != computed.tokens || restored.tokens != computed.tokens) {
      std::fprintf(stderr, "a cached prefix gives other tokens than a cold run\n");
      return 1;
    }
    RI_CHECK(computed.cached == 0 && found.cached > 0 && restored.cached == found.cached);
    cold.push_back(computed.ttft_seconds);
    arena.push_back(found.ttft_seconds);
    disk.push_back(restored.ttft_seconds);
    (*report)["cached_tokens"] = found.cached;
  }
  (*report)["prompt_tokens"] = kPrompt;
  (*report)["cold_ttft_seconds"] = cold;
  (*report)["arena_ttft_seconds"] = arena;
  (*report)["disk_ttft_seconds"] = disk;
  (*report)["arena_over_cold"] = Median(arena) / Median(cold);
  (*report)["disk_over_cold"] = Median(disk) / Median(cold);
  return 0;
}

int MeasureIndexed(nlohmann::json* report) {
  constexpr int32_t kTail = 64;
  Pair pair(/*durable=*/true);
  const size_t num_tokens = kPrompt / 64 * 64 + 4;
  const std::string path = EnvText("RETROINFER_BENCH_TEXT", "");
  const std::vector<int32_t> all =
      path.empty() ? RandomTokens(num_tokens + static_cast<size_t>(kTail * kRounds), 2)
                   : pair.TokensOf(path, num_tokens + static_cast<size_t>(kTail * kRounds));
  const auto end_of_text = all.begin() + static_cast<std::ptrdiff_t>(num_tokens);
  const std::vector<int32_t> text(all.begin(), end_of_text);
  std::vector<double> arena, disk;
  for (int round = 0; round < kRounds; ++round) {
    const std::string salt = absl::StrCat("tenant ", round);
    std::vector<int32_t> question = text;
    question.insert(question.end(), end_of_text + round * kTail, end_of_text + (round + 1) * kTail);
    pair.Ask(text, salt);
    pair.WaitUntilWritten();
    const auto found = pair.Ask(question, salt, kTail);
    pair.RestartBothCold();
    const auto restored = pair.Ask(question, salt, kTail);
    if (restored.tokens != found.tokens) {
      std::fprintf(stderr, "a text on the disk gives other tokens than one in the arena\n");
      return 1;
    }
    RI_CHECK(found.cached > 0 && restored.cached == found.cached);
    arena.push_back(found.ttft_seconds);
    disk.push_back(restored.ttft_seconds);
    for (const char* const what : {"index_bytes", "asked_bytes", "behind_bytes", "part_requests",
                                   "part_request_seconds", "restore_seconds"}) {
      const auto value = pair.Metric(absl::StrCat("retroinfer_durable_", what, "_total"));
      if (value.has_value()) (*report)[absl::StrCat("indexed_", what)].push_back(*value);
    }
  }
  (*report)["indexed_arena_ttft_seconds"] = arena;
  (*report)["indexed_disk_ttft_seconds"] = disk;
  (*report)["indexed_disk_over_arena"] = Median(disk) / Median(arena);
  return 0;
}

void MeasureDecode(nlohmann::json* report) {
  Pair with(/*durable=*/true), without(/*durable=*/false);
  std::vector<double> written, plain, ratios, cpu_shares;
  for (int round = 0; round < kRounds; ++round) {
    const auto seed = static_cast<uint64_t>(round) + 1;
    Pair::Decode durable, volatile_only;
    // In turns, the order too.
    if (round % 2 == 0) durable = with.DecodeBesidePrefills(seed);
    volatile_only = without.DecodeBesidePrefills(seed);
    if (round % 2 != 0) durable = with.DecodeBesidePrefills(seed);
    written.push_back(durable.seconds_per_token);
    plain.push_back(volatile_only.seconds_per_token);
    ratios.push_back(durable.seconds_per_token / volatile_only.seconds_per_token);
    cpu_shares.push_back((durable.store_cpu_seconds - volatile_only.store_cpu_seconds) /
                         durable.worker_cpu_seconds);
  }
  (*report)["write_through_seconds_per_token"] = written;
  (*report)["no_disk_seconds_per_token"] = plain;
  (*report)["segments_written"] = with.stats().durable_persisted_total();
  (*report)["write_through_over_no_disk"] = Median(ratios);
  // Does not mind what else runs: the store's CPU time for the disk, over all that the worker used.
  (*report)["write_through_cpu_over_worker_cpu"] = Median(cpu_shares);
}

int Main() {
  nlohmann::json report = {{"benchmark", "durable_services"},
                           {"smoke", bench::IsSmoke()},
                           {"commit", std::string(common::kBuildRevision)}};
  if (HasPart("first-token") && MeasureFirstToken(&report) != 0) return 1;
  if (HasPart("indexed") && MeasureIndexed(&report) != 0) return 1;
  if (HasPart("decode")) MeasureDecode(&report);
  bench::Print(report);
  return 0;
}

}  // namespace
}  // namespace retroinfer

int main() { return retroinfer::Main(); }
