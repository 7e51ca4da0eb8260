// What formats of keys and values, or of weights, cost in accuracy: the log-probabilities of a
// text's tokens, measured through the engine with each format and policy, against those with bf16
// and policy full.
//
//   kv_format_accuracy_bench FOLDER_OF_MODEL TEXT [--tokens 30000] [--scored 500] [--documents 4]
//                            [--weights fp8 fp8-products int4] [--max-unseen-mass 0.3 0.2]
//
// --max-unseen-mass: keys, values and index in bf16: the standard, high, and the standard with such
// limits on what steps leave to estimates.
// --weights: keys and values in bf16, and weights as they are, then in such forms; fp8-products has
// activations of prompts in fp8, too, which wants a Hopper GPU.
//
// TEXT is cut into documents of `tokens` tokens that are read and `scored` that are measured, one
// after the other. The backend is that of tests/support/in_process_worker.h. Prints a JSON line for
// each row: perplexity of the measured tokens, that over the first row's, the mean change of a
// token's log-probability from the first row, and the bytes that a step read over those of policy
// full in the same format.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "bench/support/measure.h"
#include "bench/support/must.h"
#include "gpu_worker/wave_index/retrieval_quality.h"
#include "nlohmann/json.hpp"
#include "tests/support/in_process_worker.h"

namespace retroinfer {
namespace {

using bench::Must;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;

struct Settings {
  std::string model_folder;
  std::string text;
  int64_t tokens = 30'000;
  int64_t scored = 500;
  int64_t documents = 4;
  std::vector<std::string> weights;
  std::vector<double> max_unseen_mass;
};

struct Row {
  KvFormat format;
  PolicyKind policy = PolicyKind::kFull;
  RetrievalShare retrieval = {};
  KeptWeights weights = KeptWeights::kAsStored;
  double max_unseen_mass = 0;
};

struct Document {
  std::vector<int32_t> read;
  std::vector<int32_t> scored;
};

std::vector<Document> ReadDocuments(const Settings& settings, const Tokenizer& tokenizer) {
  std::ifstream file(settings.text);
  if (!file.good()) bench::Fail("no text at " + settings.text);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::vector<int32_t> tokens = Must(tokenizer.Encode(text));
  const int64_t each = settings.tokens + settings.scored;
  if (std::ssize(tokens) < settings.documents * each) {
    bench::Fail("the text has " + std::to_string(tokens.size()) + " tokens, " +
                std::to_string(settings.documents * each) + " are needed");
  }
  std::vector<Document> documents;
  for (int64_t i = 0; i < settings.documents; ++i) {
    const auto begin = tokens.begin() + i * each;
    documents.push_back(
        {{begin, begin + settings.tokens}, {begin + settings.tokens, begin + each}});
  }
  return documents;
}

struct Measured {
  std::vector<double> logprobs;  // of each measured token of all documents
  double kv_read_ratio = 0;      // mean over documents
  double unseen_mass = 0;        // the same
  double largest_unseen_mass = 0;
};

Measured Measure(InProcessWorker& worker, const std::vector<Document>& documents, const Row& row) {
  Measured measured;
  for (const Document& document : documents) {
    GenerationRequest request =
        worker.Greedy(document.read, static_cast<int32_t>(document.scored.size()), row.policy);
    request.continuations = {document.scored};
    request.sampling.num_logprobs = 0;
    if (row.policy == PolicyKind::kWave) request.attention.retrieval_ratio = row.retrieval.ratio;
    request.attention.max_unseen_mass = row.max_unseen_mass;
    const auto sink = worker.Submit(std::move(request));
    if (const absl::Status& status = sink->Wait().status; !status.ok()) {
      bench::Fail(std::string(status.message()));
    }
    measured.kv_read_ratio += sink->Wait().kv_read_ratio / static_cast<double>(documents.size());
    const UnseenMass unseen = sink->Wait().unseen.value_or(UnseenMass());
    measured.unseen_mass += unseen.mean / static_cast<double>(documents.size());
    measured.largest_unseen_mass = std::max(measured.largest_unseen_mass, unseen.largest);
    const auto tokens = sink->measured();
    for (const OutputToken& token : tokens.at(0)) {
      measured.logprobs.push_back(static_cast<double>(token.logprob));
    }
  }
  return measured;
}

double Perplexity(std::span<const double> logprobs) {
  double sum = 0;
  for (const double logprob : logprobs) sum += logprob;
  return std::exp(-sum / static_cast<double>(logprobs.size()));
}

double MeanChange(std::span<const double> from, std::span<const double> to) {
  double change = 0;
  for (size_t i = 0; i < from.size(); ++i) change += std::abs(to[i] - from[i]);
  return change / static_cast<double>(from.size());
}

RetrievalShare Standard(const KvFormat& format) {
  return RetrievalFor(RetrievalQuality::kStandard, format);
}
RetrievalShare High(const KvFormat& format) {
  return RetrievalFor(RetrievalQuality::kHigh, format);
}

std::vector<Row> RowsOf(const Settings& settings) {
  const RetrievalShare few = Standard(kBf16Kv);
  const std::vector<Row> of_kv = {{kBf16Kv},
                                  {kBf16Kv, PolicyKind::kWave, few},
                                  {kBf16Kv, PolicyKind::kWave, High(kBf16Kv)},
                                  {kBf16Int8Kv, PolicyKind::kWave, few},
                                  {kBf16Int8Kv, PolicyKind::kWave, Standard(kBf16Int8Kv)},
                                  {kBf16Int8Kv, PolicyKind::kWave, High(kBf16Int8Kv)},
                                  {kInt8Kv},
                                  {kInt8Kv, PolicyKind::kWave, few},
                                  {kInt8Kv, PolicyKind::kWave, Standard(kInt8Kv)},
                                  {kInt8Kv, PolicyKind::kWave, High(kBf16Int8Kv)},
                                  {kInt8Kv, PolicyKind::kWave, High(kInt8Kv)},
                                  {kBf16CodedKv, PolicyKind::kWave, Standard(kBf16CodedKv)},
                                  {kBf16CodedKv, PolicyKind::kWave, High(kBf16CodedKv)},
                                  {kInt8CodedKv, PolicyKind::kWave, Standard(kInt8CodedKv)},
                                  {kInt8CodedKv, PolicyKind::kWave, High(kInt8CodedKv)}};
  if (!settings.max_unseen_mass.empty()) {
    std::vector<Row> limited(of_kv.begin(), of_kv.begin() + 3);
    for (const double limit : settings.max_unseen_mass) {
      limited.push_back(of_kv[1]);
      limited.back().max_unseen_mass = limit;
    }
    return limited;
  }
  if (settings.weights.empty()) return of_kv;
  std::vector<Row> of_weights(of_kv.begin(), of_kv.begin() + 2);
  for (const std::string& name : settings.weights) {
    for (const Row& row : {of_kv[0], of_kv[1]}) {
      of_weights.push_back(row);
      of_weights.back().weights = name == "fp8"    ? KeptWeights::kFp8
                                  : name == "int4" ? KeptWeights::kInt4
                                                   : KeptWeights::kFp8Products;
    }
  }
  return of_weights;
}

int Run(const Settings& settings) {
  std::vector<double> first;
  for (const Row& row : RowsOf(settings)) {
    InProcessWorkerOptions options;
    options.model_folder = settings.model_folder;
    options.max_model_len = settings.tokens + settings.scored;
    options.arena_bytes = size_t{2} << 30;
    options.block_cache_bytes = size_t{256} << 20;
    options.kv_format = row.format;
    options.weights = row.weights;
    if (row.policy == PolicyKind::kWave) {
      options.wave_index.radius_weight = row.retrieval.radius_weight;
      options.wave_index.min_retrieved = row.retrieval.min_retrieved;
      options.wave_index.candidate_ratio = row.retrieval.candidate_ratio;
      options.wave_index.min_candidates = row.retrieval.min_candidates;
    }
    InProcessWorker worker(options);
    const auto documents = ReadDocuments(settings, worker.tokenizer());
    const Measured measured = Measure(worker, documents, row);
    const std::vector<double>& logprobs = measured.logprobs;
    if (first.empty()) first = logprobs;
    nlohmann::json changes = nlohmann::json::array();  // by document
    const auto each = static_cast<size_t>(settings.scored);
    for (size_t at = 0; at < logprobs.size(); at += each) {
      changes.push_back(
          MeanChange(std::span(first).subspan(at, each), std::span(logprobs).subspan(at, each)));
    }
    nlohmann::json json = bench::Report("kv_format_accuracy", worker.device().info());
    json["model"] = settings.model_folder;
    json["tokens"] = settings.tokens;
    json["measured"] = logprobs.size();
    json["kv_format"] = std::string(row.format.name);
    json["weights"] = row.weights == KeptWeights::kAsStored ? "as stored"
                      : row.weights == KeptWeights::kFp8    ? "fp8"
                      : row.weights == KeptWeights::kInt4   ? "int4"
                                                            : "fp8, activations fp8";
    json["policy"] = row.policy == PolicyKind::kFull ? "full" : "wave";
    if (row.policy == PolicyKind::kWave) {
      json["retrieval"] = row.retrieval.ratio;
      json["min_retrieved"] = row.retrieval.min_retrieved;
      json["max_unseen_mass"] = row.max_unseen_mass;
    }
    json["unseen_mass"] = measured.unseen_mass;
    json["largest_unseen_mass"] = measured.largest_unseen_mass;
    json["kv_read_ratio"] = measured.kv_read_ratio;
    json["perplexity"] = Perplexity(logprobs);
    json["perplexity_ratio"] = Perplexity(logprobs) / Perplexity(first);
    json["mean_change"] = MeanChange(first, logprobs);
    json["mean_change_by_document"] = changes;
    std::printf("%s\n", json.dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app("What formats of keys and values cost in accuracy");
  app.add_option("model", settings.model_folder)->required();
  app.add_option("text", settings.text)->required();
  app.add_option("--tokens", settings.tokens)->check(CLI::Range(9'000, 1'000'000));
  app.add_option("--scored", settings.scored)->check(CLI::Range(1, 100'000));
  app.add_option("--documents", settings.documents)->check(CLI::Range(1, 1'000));
  app.add_option("--weights", settings.weights)
      ->check(CLI::IsMember({"fp8", "fp8-products", "int4"}));
  app.add_option("--max-unseen-mass", settings.max_unseen_mass)->check(CLI::Range(0.0, 0.99));
  if (argc == 1 && bench::IsSmoke()) return 0;
  CLI11_PARSE(app, argc, argv);
  return Run(settings);
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) { return retroinfer::Main(argc, argv); }
