// What a load test found: throughput and the distribution of latencies.
//
// Names and definitions are those of vLLM's serving benchmark: TTFT from sending to the first
// output; TPOT (end - TTFT) / (output tokens - 1) of a request; ITL every gap between two output
// events; E2EL from sending to the end.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/bench/load_run.h"

namespace retroinfer::client {

// Milliseconds; percentiles interpolate between neighbours. All 0 without values.
struct LatencySummary {
  double mean = 0;
  double median = 0;
  double std = 0;  // of the population
  double p99 = 0;
};
LatencySummary Summarize(std::vector<double> values);

// What a request must keep to count as good: service level objectives. Zero: nothing.
struct LatencyGoal {
  absl::Duration first_token;
  absl::Duration per_token;  // TPOT
  bool any() const {
    return first_token > absl::ZeroDuration() || per_token > absl::ZeroDuration();
  }
};

// Fields from "completed" to "p99_e2el_ms", and the errors of failed requests, each once. With a
// goal "good" requests and "request_goodput", those a second; failed ones are not good. Where
// requests have classes, "classes" has the same of each, without what needs the run's time.
nlohmann::json LatencyReport(const LoadRun& run, const LatencyGoal& goal = {});

// The same for people.
std::string FormatReport(const nlohmann::json& report);

}  // namespace retroinfer::client
