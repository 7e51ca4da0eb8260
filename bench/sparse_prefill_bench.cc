// Time to the first token of a long prompt under sparse prefill, over that of exact prefill, and
// what it changes: the perplexity of the prompt's last quarter over that of exact prefill. The demo
// model reads Python of this tree; each run has a cache of its own. Prints JSON.
//
// usage: sparse_prefill_bench [--threshold 0.98] [tokens ...]   Default: 4096 8192 16384 24576
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
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

std::string PythonOfTheTree() {
  std::vector<std::filesystem::path> paths;
  const auto folder = std::filesystem::path(RETROINFER_SOURCE_DIR) / "tools";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".py") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::string text;
  for (const auto& path : paths) {
    std::ifstream file(path);
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  return text;
}

class SparsePrefillBench {
 public:
  SparsePrefillBench(int64_t most_tokens, const BlockChoice& sparse)
      : worker_(OptionsFor(most_tokens, sparse)) {
    const auto tokens = worker_.tokenizer().Encode(PythonOfTheTree());
    RI_CHECK(tokens.ok() && std::ssize(*tokens) >= most_tokens);
    text_ = *tokens;
  }

  Device& device() { return worker_.device(); }

  nlohmann::json Measure(int64_t length) {
    const std::vector<int32_t> prompt(text_.begin(), text_.begin() + length);
    std::vector<double> exact, sparse;
    for (int round = 0; round < (bench::IsSmoke() ? 1 : 3); ++round) {
      exact.push_back(FirstToken(prompt, PrefillKind::kExact));
      sparse.push_back(FirstToken(prompt, PrefillKind::kSparse));
    }
    std::sort(exact.begin(), exact.end());
    std::sort(sparse.begin(), sparse.end());
    nlohmann::json json = {{"tokens", length},
                           {"exact_seconds", exact},
                           {"sparse_seconds", sparse},
                           {"times_faster", exact[exact.size() / 2] / sparse[sparse.size() / 2]}};
    const double change = Loss(prompt, PrefillKind::kSparse) - Loss(prompt, PrefillKind::kExact);
    json["perplexity_change_percent"] = 100 * std::expm1(change);
    return json;
  }

 private:
  static InProcessWorkerOptions OptionsFor(int64_t most_tokens, const BlockChoice& sparse) {
    InProcessWorkerOptions options;
    options.model_folder = std::filesystem::path(RETROINFER_SOURCE_DIR) / "models/code";
    options.max_model_len = most_tokens + 64;
    options.sparse = sparse;
    options.arena_bytes = size_t{1} << 30;
    return options;
  }

  std::shared_ptr<CollectingSink> Run(const std::vector<int32_t>& prompt, PrefillKind prefill,
                                      int32_t num_prompt_logprobs) {
    GenerationRequest request = worker_.Greedy(prompt, 1, PolicyKind::kFull);
    request.attention.prefill = prefill;
    request.num_prompt_logprobs = num_prompt_logprobs;
    request.sampling.num_logprobs = 0;
    request.cache_salt = std::to_string(++num_runs_);
    auto sink = worker_.Submit(std::move(request));
    RI_CHECK(sink->Wait().status.ok());
    RI_CHECK(worker_.WaitUntilIdle());
    return sink;
  }
  double FirstToken(const std::vector<int32_t>& prompt, PrefillKind prefill) {
    return absl::ToDoubleSeconds(Run(prompt, prefill, -1)->Wait().time_to_first_token);
  }
  // Mean -log p of the last quarter.
  double Loss(const std::vector<int32_t>& prompt, PrefillKind prefill) {
    const std::vector<float> logprobs = Run(prompt, prefill, 0)->logprobs();
    const size_t last = std::min(prompt.size() - 1, logprobs.size()), first = last / 4 * 3;
    double sum = 0;
    for (size_t i = first; i < last; ++i) sum -= logprobs[i];
    return sum / static_cast<double>(last - first);
  }

  InProcessWorker worker_;
  std::vector<int32_t> text_;
  int num_runs_ = 0;
};

int Main(int argc, char** argv) {
  std::vector<int64_t> lengths;
  BlockChoice sparse = kSparsePrefill;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--threshold" && i + 1 < argc) {
      sparse.threshold = static_cast<float>(std::atof(argv[++i]));
    } else {
      lengths.push_back(std::atoll(argv[i]));
    }
  }
  if (lengths.empty()) lengths = {4096, 8192, 16384, 24576};
  if (bench::IsSmoke()) lengths = {4500};
  if (*std::ranges::min_element(lengths) < 64) {
    std::fprintf(stderr, "lengths are of at least 64 tokens\n");
    return 2;
  }
  SparsePrefillBench measured(*std::ranges::max_element(lengths), sparse);
  nlohmann::json report = bench::Report("sparse_prefill", measured.device().info());
  report["threshold"] = sparse.threshold;
  report["lengths"] = nlohmann::json::array();
  for (const int64_t length : lengths) report["lengths"].push_back(measured.Measure(length));
  std::printf("%s\n", report.dump(2).c_str());
  return 0;
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) { return retroinfer::Main(argc, argv); }
