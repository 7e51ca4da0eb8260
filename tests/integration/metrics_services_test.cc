// What both services export, against docs/operate/metrics.md: each metric is documented, with its
// type, its labels and its help, and nothing else is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "build_paths.h"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

using ::testing::HasSubstr;

struct Metric {
  std::string type;
  std::set<std::string> labels;
  std::string help;
  bool operator==(const Metric&) const = default;
};
using MetricTable = std::map<std::string, Metric>;  // by name

// A line of the document.
std::string Row(const std::string& name, const Metric& metric) {
  return absl::StrCat("| `", name, "` | ", metric.type, " | ", absl::StrJoin(metric.labels, ", "),
                      " | ", metric.help, " |");
}

// Names of the labels in "name{a=\"x\",b=\"y\"} 1"; no value has a quotation mark.
std::set<std::string> LabelsOf(const std::string& line) {
  std::set<std::string> labels;
  const size_t open = line.find('{');
  if (open == std::string::npos) return labels;
  const std::vector<std::string> pieces = absl::StrSplit(line.substr(open + 1), '"');
  for (size_t i = 0; i + 1 < pieces.size(); i += 2) {
    std::string name = pieces[i].substr(0, pieces[i].size() - 1);
    if (name.front() == ',') name.erase(0, 1);
    if (name != "le") labels.insert(name);
  }
  return labels;
}

// Without what the HTTP library says of itself.
MetricTable ParseExposition(const std::string& text) {
  MetricTable table;
  std::string name;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
    if (words[0] != "#") {
      for (const std::string& label : LabelsOf(line)) table[name].labels.insert(label);
      continue;
    }
    name = words[2];
    (words[1] == "HELP" ? table[name].help : table[name].type) = words[3];
  }
  std::erase_if(table, [](const auto& entry) { return entry.first.starts_with("exposer_"); });
  return table;
}

// The tables under the heading "## `section`".
MetricTable ParseDocument(const std::string& section) {
  std::ifstream file(RETROINFER_SOURCE_DIR "/docs/operate/metrics.md");
  MetricTable table;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) inside = line == absl::StrCat("## ", section);
    if (!inside || !line.starts_with("| `")) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    EXPECT_EQ(cells.size(), 4u) << line;
    if (cells.size() != 4) continue;
    const std::string name = cells[0].substr(3, cells[0].size() - 4);
    EXPECT_EQ(table.count(name), 0u) << name << " is there twice";
    Metric& metric = table[name];
    metric.type = cells[1];
    const std::vector<std::string> labels = absl::StrSplit(cells[2], ", ", absl::SkipEmpty());
    metric.labels.insert(labels.begin(), labels.end());
    metric.help = std::string(absl::StripSuffix(cells[3], " |"));
  }
  return table;
}

void ExpectDocumented(const MetricTable& exported, const std::string& section,
                      const std::string& further = "Both services") {
  MetricTable documented = ParseDocument(section);
  documented.merge(ParseDocument("Both services"));
  documented.merge(ParseDocument(further));
  for (const auto& [name, metric] : exported) {
    if (documented.count(name) == 0) {
      ADD_FAILURE() << "not in docs/operate/metrics.md under " << section << ":\n"
                    << Row(name, metric);
    } else if (!(documented[name] == metric)) {
      ADD_FAILURE() << "docs/operate/metrics.md under " << section << " should say\n"
                    << Row(name, metric);
    }
  }
  for (const auto& [name, metric] : documented) {
    EXPECT_EQ(exported.count(name), 1u) << name << " is not exported by " << section;
  }
}

// The value of the sample that begins with `series`; -1 if there is none.
double ValueOf(const std::string& text, const std::string& series) {
  const size_t at = text.find(absl::StrCat("\n", series, " "));
  return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size() + 2));
}

class MetricsServicesTest : public testing::Test {
 protected:
  static ServiceOptions Options() {
    ServiceOptions options;
    options.worker_arguments = {"--max-model-len", "4096"};
    return options;
  }
  ServiceProcesses processes_{Options()};
};

TEST_F(MetricsServicesTest, AreDocumentedAndBelongToOneService) {
  processes_.StartBoth();
  const MetricTable worker = ParseExposition(processes_.WorkerMetrics());
  const MetricTable store = ParseExposition(processes_.StoreMetrics());
  EXPECT_GT(worker.size(), 50u);
  EXPECT_GT(store.size(), 40u);
  ExpectDocumented(worker, "gpu_worker");
  ExpectDocumented(store, "kv_store_service");
  // A sum over both services must not add what does not belong together.
  for (const auto& [name, metric] : worker) {
    if (store.count(name) == 0 || name.starts_with("process_")) continue;
    EXPECT_EQ(metric.labels.count("service"), 1u) << name << " is exported by both services";
  }
}

TEST_F(MetricsServicesTest, ThoseOfRanksAreDocumented) {
  processes_.options().device = "cpu";  // there may be one GPU
  processes_.options().worker_arguments.insert(processes_.options().worker_arguments.end(),
                                               {"--tensor-parallel", "2"});
  processes_.StartBoth();
  ExpectDocumented(ParseExposition(processes_.WorkerMetrics()), "gpu_worker",
                   "gpu_worker of several ranks");
  ExpectDocumented(ParseExposition(processes_.StoreMetrics()), "kv_store_service",
                   "kv_store_service of several ranks");
}

TEST_F(MetricsServicesTest, CountWhatClientsDoAndNothingElse) {
  // A token a step, so that steps can be counted.
  processes_.options().worker_arguments.insert(processes_.options().worker_arguments.end(),
                                               {"--speculation", "off"});
  processes_.StartBoth();
  std::string text = processes_.WorkerMetrics();
  for (const char* counter :
       {"prompt_tokens_total", "generation_tokens_total", "decode_steps_total", "page_hits_total",
        "requests_total{finish_reason=\"length\"}", "request_prompt_tokens_count",
        "requests_refused_total{reason=\"QUEUE_FULL\"}", "seconds_since_progress",
        "oldest_waiting_seconds", "requests_waiting_for_prefill"}) {
    EXPECT_EQ(ValueOf(text, absl::StrCat("retroinfer_", counter)), 0) << counter;
  }
  EXPECT_EQ(ValueOf(text, "retroinfer_requests_waiting_limit"), 1024);
  EXPECT_EQ(ValueOf(text, "retroinfer_process_restarts_total{service=\"gpu_worker\"}"), 0);
  EXPECT_GT(ValueOf(text, "process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(ValueOf(processes_.StoreMetrics(), "process_resident_memory_bytes"), 1 << 20);
  // In all at once when the stream has ended.
  for (int round = 1; round <= 5; ++round) {
    ASSERT_EQ(Generate(processes_.worker_stub(), SampledRequest(RandomTokens(30, 1), 8, 1)).size(),
              8u);
    text = processes_.WorkerMetrics();
    EXPECT_EQ(ValueOf(text, "retroinfer_prompt_tokens_total"), 30 * round);
    EXPECT_EQ(ValueOf(text, "retroinfer_generation_tokens_total"), 8 * round);
    EXPECT_EQ(ValueOf(text, "retroinfer_decode_steps_total"), 7 * round);
    EXPECT_EQ(ValueOf(text, "retroinfer_requests_total{finish_reason=\"length\"}"), round);
    EXPECT_EQ(ValueOf(text, "retroinfer_request_prompt_tokens_count"), round);
    EXPECT_EQ(ValueOf(text, "retroinfer_requests_running"), 0);
  }
}

}  // namespace
}  // namespace retroinfer::test_support
