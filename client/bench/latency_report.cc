#include "client/bench/latency_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace retroinfer::client {
namespace {

// The value below which the share `fraction` of the sorted values lies.
double Percentile(const std::vector<double>& sorted, double fraction) {
  const double at = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

void AddSummary(const char* name, std::vector<double> values, nlohmann::json& report) {
  const LatencySummary summary = Summarize(std::move(values));
  report[absl::StrCat("mean_", name, "_ms")] = summary.mean;
  report[absl::StrCat("median_", name, "_ms")] = summary.median;
  report[absl::StrCat("std_", name, "_ms")] = summary.std;
  report[absl::StrCat("p99_", name, "_ms")] = summary.p99;
}

// Of some of the requests.
struct Figures {
  int64_t completed = 0, failed = 0, input = 0, cached = 0, output = 0, good = 0;
  std::vector<double> ttft, tpot, itl, e2el;
  std::set<std::string> errors;

  void Add(const RequestRecord& record, const LatencyGoal& goal);
  nlohmann::json ToJson(const LatencyGoal& goal) const;
};

bool Keeps(const RequestRecord& record, absl::Duration per_token, const LatencyGoal& goal) {
  constexpr absl::Duration kNone = absl::ZeroDuration();
  return (goal.first_token <= kNone || record.first_token <= goal.first_token) &&
         (goal.per_token <= kNone || per_token <= goal.per_token);
}

void Figures::Add(const RequestRecord& record, const LatencyGoal& goal) {
  if (!record.error.empty()) {
    ++failed;
    errors.insert(record.error);
    return;
  }
  ++completed;
  input += record.prompt_tokens;
  cached += record.cached_tokens;
  output += record.completion_tokens;
  e2el.push_back(Milliseconds(record.end));
  if (record.completion_tokens > 0) ttft.push_back(Milliseconds(record.first_token));
  absl::Duration per_token;
  if (record.completion_tokens > 1) {
    per_token = (record.end - record.first_token) / (record.completion_tokens - 1);
    tpot.push_back(Milliseconds(per_token));
  }
  for (const absl::Duration gap : record.gaps) itl.push_back(Milliseconds(gap));
  if (Keeps(record, per_token, goal)) ++good;
}

nlohmann::json Figures::ToJson(const LatencyGoal& goal) const {
  nlohmann::json json = {{"completed", completed},
                         {"failed", failed},
                         {"total_input_tokens", input},
                         {"total_cached_tokens", cached},
                         {"total_output_tokens", output}};
  if (goal.any()) json["good"] = good;
  AddSummary("ttft", ttft, json);
  AddSummary("tpot", tpot, json);
  AddSummary("itl", itl, json);
  AddSummary("e2el", e2el, json);
  return json;
}

// A line for each class.
std::string FormatClasses(const nlohmann::json& classes) {
  std::string text = absl::StrFormat("%-19s%10s%10s%10s%10s%10s%10s\n", "class", "completed",
                                     "failed", "ttft med", "ttft p99", "itl p99", "good");
  for (const auto& [name, figures] : classes.items()) {
    absl::StrAppendFormat(
        &text, "%-19s%10d%10d%10.2f%10.2f%10.2f%10s\n", name.substr(0, 18),
        figures.at("completed").get<int64_t>(), figures.at("failed").get<int64_t>(),
        figures.at("median_ttft_ms").get<double>(), figures.at("p99_ttft_ms").get<double>(),
        figures.at("p99_itl_ms").get<double>(),
        figures.contains("good") ? figures.at("good").dump() : "-");
  }
  return text;
}

}  // namespace

LatencySummary Summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  LatencySummary summary{.mean = std::accumulate(values.begin(), values.end(), 0.0) / count,
                         .median = Percentile(values, 0.5),
                         .p99 = Percentile(values, 0.99)};
  double squares = 0;
  for (const double value : values) squares += (value - summary.mean) * (value - summary.mean);
  summary.std = std::sqrt(squares / count);
  return summary;
}

nlohmann::json LatencyReport(const LoadRun& run, const LatencyGoal& goal) {
  const double seconds = std::max(absl::ToDoubleSeconds(run.duration), 1e-9);
  std::map<std::string, Figures> classes;
  Figures all;
  for (const RequestRecord& record : run.records) {
    if (!record.sent) continue;
    all.Add(record, goal);
    if (!record.request_class.empty()) classes[record.request_class].Add(record, goal);
  }
  nlohmann::json report = all.ToJson(goal);
  report["duration"] = seconds;
  report["request_throughput"] = static_cast<double>(all.completed) / seconds;
  report["output_throughput"] = static_cast<double>(all.output) / seconds;
  report["total_token_throughput"] = static_cast<double>(all.input + all.output) / seconds;
  report["errors"] = all.errors;
  if (goal.any()) report["request_goodput"] = static_cast<double>(all.good) / seconds;
  for (const auto& [name, figures] : classes) report["classes"][name] = figures.ToJson(goal);
  return report;
}

std::string FormatReport(const nlohmann::json& report) {
  std::string text = absl::StrFormat(
      "requests           %d completed, %d failed, in %.2f s (%.2f a second)\n"
      "tokens             %d in (%d cached), %d out\n"
      "output throughput  %.1f tokens/s (in and out %.1f)\n",
      report.at("completed").get<int64_t>(), report.at("failed").get<int64_t>(),
      report.at("duration").get<double>(), report.at("request_throughput").get<double>(),
      report.at("total_input_tokens").get<int64_t>(),
      report.at("total_cached_tokens").get<int64_t>(),
      report.at("total_output_tokens").get<int64_t>(), report.at("output_throughput").get<double>(),
      report.at("total_token_throughput").get<double>());
  absl::StrAppendFormat(&text, "%-19s%10s%10s%10s%10s\n", "milliseconds", "mean", "median", "std",
                        "p99");
  for (const auto& [name, title] : {std::pair{"ttft", "first token"},
                                    {"tpot", "time per token"},
                                    {"itl", "token to token"},
                                    {"e2el", "whole request"}}) {
    absl::StrAppendFormat(&text, "%-19s", title);
    for (const char* kind : {"mean", "median", "std", "p99"}) {
      absl::StrAppendFormat(&text, "%10.2f",
                            report.at(absl::StrCat(kind, "_", name, "_ms")).get<double>());
    }
    text += '\n';
  }
  if (report.contains("request_goodput")) {
    absl::StrAppendFormat(
        &text, "goodput            %.2f requests a second (%d within the goals)\n",
        report.at("request_goodput").get<double>(), report.at("good").get<int64_t>());
  }
  if (report.contains("classes")) text += FormatClasses(report.at("classes"));
  for (const auto& error : report.at("errors")) {
    absl::StrAppend(&text, "failed: ", error.get<std::string>(), "\n");
  }
  return text;
}

}  // namespace retroinfer::client
