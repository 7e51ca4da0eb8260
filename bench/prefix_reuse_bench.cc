// Time to the first token of a prompt whose segments are in the arena, over that of a cold run,
// with the demo model and a store in memory. Checks first that both give the same tokens, and exits
// with 1 if they do not. Prints JSON.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/support/measure.h"
#include "build_paths.h"
#include "tests/support/in_process_worker.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;

constexpr int32_t kMaxTokens = 4;

std::shared_ptr<CollectingSink> Run(InProcessWorker& worker, const std::vector<int32_t>& prompt,
                                    const std::string& salt) {
  GenerationRequest request = worker.Greedy(prompt, kMaxTokens);
  request.cache_salt = salt;
  auto sink = worker.Submit(std::move(request));
  RI_CHECK(sink->Wait().status.ok());
  RI_CHECK(worker.WaitUntilIdle());
  return sink;
}

int Main() {
  const int64_t length = bench::IsSmoke() ? 9000 : 32768;
  InProcessWorkerOptions options;
  options.model_folder = std::filesystem::path(RETROINFER_SOURCE_DIR) / "models/needle";
  options.max_model_len = length + 64;
  options.arena_bytes = size_t{1} << 30;
  InProcessWorker worker(options);
  const std::vector<int32_t> prompt = RandomPrompt(length, worker.config().vocab_size, 1);
  Run(worker, prompt, "warm");
  std::vector<double> cold, hit;
  int64_t cached = 0;
  const int rounds = bench::IsSmoke() ? 1 : 3;
  for (int i = 0; i < rounds; ++i) {
    const auto without = Run(worker, prompt, "cold " + std::to_string(i));
    const auto with = Run(worker, prompt, "warm");
    if (without->tokens() != with->tokens()) {
      std::fprintf(stderr, "a hit gives other tokens than a cold run\n");
      return 1;
    }
    cold.push_back(absl::ToDoubleSeconds(without->Wait().time_to_first_token));
    hit.push_back(absl::ToDoubleSeconds(with->Wait().time_to_first_token));
    cached = with->Wait().cached_tokens;
  }
  std::sort(cold.begin(), cold.end());
  std::sort(hit.begin(), hit.end());
  nlohmann::json report = bench::Report("prefix_reuse", worker.device().info());
  report["prompt_tokens"] = length;
  report["cached_tokens"] = cached;
  report["cold_ttft_seconds"] = cold;
  report["hit_ttft_seconds"] = hit;
  report["ratio_of_medians"] = hit[hit.size() / 2] / cold[cold.size() / 2];
  bench::Print(report);
  return 0;
}

}  // namespace
}  // namespace retroinfer

int main() { return retroinfer::Main(); }
