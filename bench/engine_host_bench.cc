// What the engine's thread does for a decode step outside of the step itself: taking mail,
// describing, planning, commands, and what clients are told. On the CPU, where the step runs on the
// same thread, the step's time is taken off.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/time/clock.h"
#include "build_paths.h"
#include "tests/support/in_process_worker.h"

namespace retroinfer::bench {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;

// Returns microseconds a step, the least of several stretches of steps: what others do on the
// machine only adds to it.
double HostMicroseconds(int32_t batch, int stretches) {
  InProcessWorkerOptions options;
  options.model_folder =
      std::filesystem::path(RETROINFER_SOURCE_DIR) / "tests/golden/models/llama-d64-untied-bf16";
  options.context_length = 131072;
  options.max_model_len = 4096;
  options.max_batch = batch;
  options.dense_kv_bytes = size_t{192} << 20;  // for all of the contexts
  InProcessWorker worker(options);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int32_t i = 0; i < batch; ++i) {
    std::vector<int32_t> prompt =
        test_support::RandomPrompt(16, worker.config().vocab_size, static_cast<uint64_t>(i));
    sinks.push_back(worker.Submit(worker.Greedy(std::move(prompt), 3000, PolicyKind::kFull)));
  }
  const auto all_decode = [&sinks] {
    return std::ranges::all_of(sinks, [](const auto& sink) { return !sink->tokens().empty(); });
  };
  while (!all_decode()) absl::SleepFor(absl::Milliseconds(1));
  std::vector<double> found;
  EngineStats before = worker.engine().stats();
  for (int i = 0; i < stretches; ++i) {
    absl::SleepFor(absl::Milliseconds(100));
    const EngineStats after = worker.engine().stats();
    const auto steps = static_cast<double>(after.decode_steps - before.decode_steps);
    const double seconds = (after.busy_seconds - before.busy_seconds) -
                           (after.decode_host_seconds - before.decode_host_seconds);
    if (steps >= 5) found.push_back(1e6 * seconds / steps);
    before = after;
  }
  for (int32_t i = 0; i < batch; ++i) {
    worker.engine().Abort("test-" + std::to_string(i));
  }
  return found.empty() ? 0 : *std::ranges::min_element(found);
}

}  // namespace
}  // namespace retroinfer::bench

int main() {
  const bool is_smoke = std::getenv("RETROINFER_BENCH_SMOKE") != nullptr;
  for (const int32_t batch : {6, 64}) {
    const double us = retroinfer::bench::HostMicroseconds(batch, is_smoke ? 1 : 30);
    std::printf("batch %d: %.1f us a step outside of the step\n", batch, us);
  }
  return 0;
}
