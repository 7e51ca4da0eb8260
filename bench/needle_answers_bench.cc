// Exact match of the demo model through the engine, and what a decode step costs the host.
//
//   python3 -m tools.needle.generate --task multi_key --length 16384 --count 8 > questions.jsonl
//   RETROINFER_TEST_BACKEND=Cuda needle_answers_bench FOLDER_OF_MODEL questions.jsonl [OPTIONS]
//
//   --kv-dtype bf16|int8   --index-dtype auto|bf16|int8|coded   --quality standard|high
//   --weights-dtype auto|fp8|int4   --activations-dtype bf16|fp8
//   --policy full wave wave-all   --rounds 2
//
// The backend is that of tests/support/in_process_worker.h, so two runs compare two backends.
// Policy wave retrieves what a worker of that quality and format does, wave-all every cluster,
// which must answer as full does. Prints JSON lines.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "bench/support/measure.h"
#include "bench/support/must.h"
#include "common/log/check.h"
#include "gpu_worker/model/kept_weights.h"
#include "gpu_worker/wave_index/retrieval_quality.h"
#include "nlohmann/json.hpp"
#include "tests/support/in_process_worker.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;

constexpr int32_t kMaxAnswerTokens = 64;

struct Question {
  std::vector<int32_t> prompt;
  std::string answer;
};

std::vector<Question> ReadQuestions(const char* path, const Tokenizer& tokenizer) {
  std::vector<Question> questions;
  std::ifstream file(path);
  RI_CHECK(file.good());
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    auto tokens = tokenizer.Encode(json["prompt"].get<std::string>());
    RI_CHECK(tokens.ok());
    questions.push_back({*std::move(tokens), json["answer"].get<std::string>()});
  }
  return questions;
}

std::string Trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \n");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \n") + 1);
}

// What the block cache counted comes from the device with some delay.
EngineStats SettledStats(InProcessWorker& worker) {
  RI_CHECK(worker.WaitUntilIdle());
  EngineStats stats = worker.engine().stats();
  while (true) {
    absl::SleepFor(absl::Milliseconds(200));  // several rounds of an idle engine
    const EngineStats later = worker.engine().stats();
    if (later.page_hits == stats.page_hits && later.page_misses == stats.page_misses) return later;
    stats = later;
  }
}

nlohmann::json Ask(InProcessWorker& worker, const std::vector<Question>& questions,
                   const std::string& policy, double retrieval) {
  const EngineStats before = SettledStats(worker);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const Question& question : questions) {
    GenerationRequest request =
        worker.Greedy(question.prompt, kMaxAnswerTokens,
                      policy == "full" ? PolicyKind::kFull : PolicyKind::kWave);
    request.sampling.ignore_eos = false;
    if (policy == "wave") request.attention.retrieval_ratio = retrieval;
    if (policy == "wave-all") {
      request.attention.retrieval_ratio = 1;
      request.attention.estimation_ratio = 0;
    }
    sinks.push_back(worker.Submit(std::move(request)));
  }
  size_t right = 0;
  nlohmann::json wrong = nlohmann::json::array();
  for (size_t i = 0; i < sinks.size(); ++i) {
    const GenerationResult& result = sinks[i]->Wait();
    if (!result.status.ok()) wrong.push_back(std::string(result.status.message()));
    const std::string answer = Trimmed(sinks[i]->text());
    if (answer == questions[i].answer) {
      ++right;
    } else {
      wrong.push_back(answer);
    }
  }
  const EngineStats after = SettledStats(worker);
  const double steps = static_cast<double>(after.decode_steps - before.decode_steps);
  return {
      {"policy", policy},
      {"backend", worker.device().info().backend},
      {"device", worker.device().info().name},
      {"questions", questions.size()},
      {"right", right},
      {"wrong", wrong},
      {"decode_steps", steps},
      {"steps_replayed", after.decode_graphs_launched - before.decode_graphs_launched},
      {"graphs_recorded", after.decode_graphs_recorded - before.decode_graphs_recorded},
      {"host_us_per_step", (after.decode_host_seconds - before.decode_host_seconds) * 1e6 / steps},
      {"page_hits", after.page_hits - before.page_hits},
      {"page_misses", after.page_misses - before.page_misses}};
}

int Main(int argc, char** argv) {
  if (argc == 1 && bench::IsSmoke()) return 0;
  std::string model_folder, questions_file;
  std::string kv_dtype = "bf16", index_dtype = "auto", quality = "standard";
  std::string weights_dtype = "auto", activations_dtype = "bf16";
  std::vector<std::string> policies = {"full", "wave", "wave-all"};
  int rounds = 2;
  CLI::App app("Exact match of the demo model through the engine");
  app.add_option("model", model_folder)->required();
  app.add_option("questions", questions_file)->required();
  app.add_option("--kv-dtype", kv_dtype)->check(CLI::IsMember({"bf16", "int8"}));
  app.add_option("--index-dtype", index_dtype)
      ->check(CLI::IsMember({"auto", "bf16", "int8", "coded", "packed"}));
  app.add_option("--quality", quality)->check(CLI::IsMember({"standard", "high"}));
  app.add_option("--weights-dtype", weights_dtype)->check(CLI::IsMember({"auto", "fp8", "int4"}));
  app.add_option("--activations-dtype", activations_dtype)->check(CLI::IsMember({"bf16", "fp8"}));
  app.add_option("--policy", policies)->check(CLI::IsMember({"full", "wave", "wave-all"}));
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 100));
  CLI11_PARSE(app, argc, argv);
  test_support::InProcessWorkerOptions options;
  options.model_folder = model_folder;
  options.max_model_len = 131072;
  options.arena_bytes = size_t{4} << 30;
  options.block_cache_bytes = size_t{256} << 20;
  options.kv_format = bench::Must(KvFormatNamed(kv_dtype, index_dtype));
  const RetrievalShare share = RetrievalFor(*RetrievalQualityNamed(quality), options.kv_format);
  options.wave_index.min_retrieved = share.min_retrieved;
  options.wave_index.candidate_ratio = share.candidate_ratio;
  options.wave_index.min_candidates = share.min_candidates;
  options.wave_index.radius_weight = share.radius_weight;
  options.weights = bench::Must(KeptWeightsNamed(
      weights_dtype, bench::Must(LoadModelConfig(model_folder)), activations_dtype));
  InProcessWorker worker(options);
  const std::vector<Question> questions = ReadQuestions(questions_file.c_str(), worker.tokenizer());
  for (int round = 0; round < rounds; ++round) {  // from the second on shapes are known
    for (const std::string& policy : policies) {
      std::printf("%s\n", Ask(worker, questions, policy, share.ratio).dump().c_str());
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) { return retroinfer::Main(argc, argv); }
