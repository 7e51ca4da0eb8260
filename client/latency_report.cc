#include "client/latency_report.h"

#include <algorithm>
#include <cmath>
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

nlohmann::json LatencyReport(const LoadRun& run) {
  int64_t completed = 0, failed = 0, input = 0, cached = 0, output = 0;
  std::vector<double> ttft, tpot, itl, e2el;
  std::set<std::string> errors;
  for (const RequestRecord& record : run.records) {
    if (!record.sent) continue;
    if (!record.error.empty()) {
      ++failed;
      errors.insert(record.error);
      continue;
    }
    ++completed;
    input += record.prompt_tokens;
    cached += record.cached_tokens;
    output += record.completion_tokens;
    e2el.push_back(Milliseconds(record.end));
    if (record.completion_tokens > 0) ttft.push_back(Milliseconds(record.first_token));
    if (record.completion_tokens > 1) {
      tpot.push_back(Milliseconds(record.end - record.first_token) /
                     static_cast<double>(record.completion_tokens - 1));
    }
    for (const absl::Duration gap : record.gaps) itl.push_back(Milliseconds(gap));
  }
  const double seconds = std::max(absl::ToDoubleSeconds(run.duration), 1e-9);
  nlohmann::json report = {
      {"duration", seconds},
      {"completed", completed},
      {"failed", failed},
      {"total_input_tokens", input},
      {"total_cached_tokens", cached},
      {"total_output_tokens", output},
      {"request_throughput", static_cast<double>(completed) / seconds},
      {"output_throughput", static_cast<double>(output) / seconds},
      {"total_token_throughput", static_cast<double>(input + output) / seconds},
      {"errors", errors},
  };
  AddSummary("ttft", std::move(ttft), report);
  AddSummary("tpot", std::move(tpot), report);
  AddSummary("itl", std::move(itl), report);
  AddSummary("e2el", std::move(e2el), report);
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
  for (const auto& error : report.at("errors")) {
    absl::StrAppend(&text, "failed: ", error.get<std::string>(), "\n");
  }
  return text;
}

}  // namespace retroinfer::client
