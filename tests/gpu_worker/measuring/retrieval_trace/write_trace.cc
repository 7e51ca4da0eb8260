// Writes a small trace for tests/tools/lab/test_trace.py, which knows what is in it.
//
// usage: write_trace FILE STEPS
#include <algorithm>
#include <cstdlib>

#include "gpu_worker/measuring/retrieval_trace/trace_encoder.h"
#include "gpu_worker/measuring/retrieval_trace/trace_file.h"

int main(int argc, char** argv) {
  using namespace retroinfer;
  if (argc != 3) return 2;
  auto file = TraceFile::Open(argv[1], TraceEncoder::kMagic, 1 << 20);
  if (!file.ok()) return EXIT_FAILURE;
  TraceEncoder encoder({.num_layers = 2, .num_kv_heads = 2, .tokens_per_page = 4});
  (*file)->Append(encoder.Header());
  const auto num_steps = static_cast<uint32_t>(std::atoi(argv[2]));
  for (uint32_t i = 0; i < num_steps; ++i) {
    StepRetrieval step{
        .sequence_id = 1 + i % 2, .num_tokens = 8192 + i, .num_clusters = 512, .heads = {}};
    for (uint32_t head = 0; head < 4; ++head) {
      HeadRetrieval& retrieved = step.heads.emplace_back();
      for (uint32_t j = 0; j < 5 + head; ++j) {
        const uint32_t number = (i / 2 * 7 + j * 13 + head) % 500;
        const uint32_t pages = 1 + number % 200;
        retrieved.clusters.push_back({number, pages, std::min(i % 3, pages)});
      }
      std::sort(retrieved.clusters.begin(), retrieved.clusters.end(),
                [](const auto& a, const auto& b) { return a.cluster < b.cluster; });
    }
    (*file)->Append(encoder.Step(step));
  }
  (*file)->Append(encoder.Release(1));
  (*file)->Append(TraceEncoder::Lost(3));
  (*file)->End(TraceEncoder::EndOf(TraceEncoder::End::kStopped), "all of it is written");
  return EXIT_SUCCESS;
}
