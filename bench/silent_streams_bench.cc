// How long streams are silent on a machine that others keep busy: two long prompts, and behind them
// short streams that grow past the length from which they are indexed, while threads of this
// program spin on all cores. Tells for each stream its first token, the longest silence behind that
// and at which token it came, and the longest silence behind the second token, which no prompt
// explains.
//
// usage: silent_streams_bench [busy threads, 4]
// Prints one JSON object. Nothing is judged: how much time others leave is not this program's.
// RETROINFER_BIN_DIR names the services to measure.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "bench/support/measure.h"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer {
namespace {

using test_support::GenerateStream;
using test_support::ServiceProcesses;
using test_support::TokenArrival;

struct Sizes {
  size_t long_prompt;
  size_t short_prompt;  // a little less than kDenseBelow
  int32_t max_tokens;
  int num_long;
  int num_short;
};
constexpr Sizes kFull = {8300, 2000, 300, 2, 4};
constexpr Sizes kSmoke = {2100, 2000, 120, 1, 1};
constexpr char kDenseBelow[] = "2048";
constexpr absl::Duration kStartInterval = absl::Seconds(2);  // of the short streams

class BusyThreads {
 public:
  explicit BusyThreads(int count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        while (!stop_) {
        }
      });
    }
  }
  ~BusyThreads() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> threads_;
};

nlohmann::json Describe(const GenerateStream& stream, size_t prompt_tokens, absl::Time begun) {
  const std::vector<TokenArrival> arrivals = stream.arrivals();
  nlohmann::json json = {{"prompt_tokens", prompt_tokens}, {"tokens", stream.num_tokens()}};
  if (arrivals.empty()) return json;
  json["first_token_s"] = absl::ToDoubleSeconds(arrivals.front().time - begun);
  double longest = 0, longest_later = 0;
  size_t tokens = arrivals.front().num_tokens, longest_at = 0;
  for (size_t i = 1; i < arrivals.size(); ++i) {
    const double silence = absl::ToDoubleSeconds(arrivals[i].time - arrivals[i - 1].time);
    if (silence > longest) {
      longest = silence;
      longest_at = tokens;
    }
    if (tokens > 1) longest_later = std::max(longest_later, silence);
    tokens += arrivals[i].num_tokens;
  }
  json["longest_silence_s"] = longest;
  json["longest_silence_behind_token"] = longest_at;
  json["longest_silence_behind_second_token_s"] = longest_later;
  return json;
}

int Main(int argc, char** argv) {
  const Sizes& sizes = bench::IsSmoke() ? kSmoke : kFull;
  const int num_busy = bench::IsSmoke() ? 1 : argc > 1 ? std::atoi(argv[1]) : 4;
  test_support::ServiceOptions options;
  options.arena_bytes = "256MiB";
  options.memory = "1GiB";
  options.worker_arguments = {"--max-model-len", "12000", "--dense-below", kDenseBelow};
  ServiceProcesses processes(options);
  processes.StartBoth();
  struct Stream {
    size_t prompt_tokens;
    absl::Time begun;
    std::unique_ptr<GenerateStream> stream;
  };
  std::vector<Stream> streams;
  {
    const BusyThreads busy(num_busy);
    for (int i = 0; i < sizes.num_long + sizes.num_short; ++i) {
      const size_t prompt = i < sizes.num_long ? sizes.long_prompt : sizes.short_prompt;
      if (i >= sizes.num_long) absl::SleepFor(kStartInterval);
      const auto seed = static_cast<uint64_t>(i);
      streams.push_back({prompt, absl::Now(),
                         std::make_unique<GenerateStream>(
                             processes.worker_stub(),
                             test_support::SampledRequest(test_support::RandomTokens(prompt, seed),
                                                          sizes.max_tokens, seed))});
    }
    for (const Stream& stream : streams) {
      if (const grpc::Status status = stream.stream->Wait(); !status.ok()) {
        std::fprintf(stderr, "silent_streams_bench: %s\n", status.error_message().c_str());
        return 1;
      }
    }
  }
  nlohmann::json report = bench::Report("silent_streams", processes.WorkerDevice());
  report["busy_threads"] = num_busy;
  double longest = 0, longest_later = 0;
  for (const Stream& stream : streams) {
    const nlohmann::json json = Describe(*stream.stream, stream.prompt_tokens, stream.begun);
    longest = std::max(longest, json.value("longest_silence_s", 0.0));
    longest_later =
        std::max(longest_later, json.value("longest_silence_behind_second_token_s", 0.0));
    report["streams"].push_back(json);
  }
  report["longest_silence_s"] = longest;
  report["longest_silence_behind_second_token_s"] = longest_later;
  bench::Print(report);
  return 0;
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) { return retroinfer::Main(argc, argv); }
