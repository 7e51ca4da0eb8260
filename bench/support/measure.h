// Timing and reporting that the benchmark programs share.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "common/build_info/build_info.h"
#include "gpu_worker/device/device.h"
#include "nlohmann/json.hpp"

namespace retroinfer::bench {

// Whether to run for a moment only, so that a test can see that the program works.
inline bool IsSmoke() { return std::getenv("RETROINFER_BENCH_SMOKE") != nullptr; }

// Threads to use: RETROINFER_BENCH_THREADS, or one a core.
inline int NumThreads() {
  const char* text = std::getenv("RETROINFER_BENCH_THREADS");
  return text == nullptr ? 0 : std::atoi(text);
}

struct Timing {
  double median = 0;  // seconds
  double min = 0;
  double max = 0;
  double cpu_median = 0;  // processor time of the whole process
  int runs = 0;
};

// Times single calls, in rounds with whatever else a benchmark compares, so that a change of the
// machine's speed meets all of them alike.
class Samples {
 public:
  template <typename Body>
  void Time(const Body& body) {
    const std::clock_t cpu_begin = std::clock();
    const auto begin = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    seconds_.push_back(elapsed.count());
    cpu_seconds_.push_back(static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC);
  }
  Timing timing() const {
    if (seconds_.empty()) return {};
    std::vector<double> sorted = seconds_;
    std::vector<double> cpu_sorted = cpu_seconds_;
    std::sort(sorted.begin(), sorted.end());
    std::sort(cpu_sorted.begin(), cpu_sorted.end());
    return {sorted[sorted.size() / 2], sorted.front(), sorted.back(),
            cpu_sorted[cpu_sorted.size() / 2], static_cast<int>(sorted.size())};
  }

 private:
  std::vector<double> seconds_;
  std::vector<double> cpu_seconds_;
};

inline nlohmann::json ToJson(const Timing& timing) {
  return {{"seconds_median", timing.median},
          {"seconds_min", timing.min},
          {"seconds_max", timing.max},
          {"cpu_seconds_median", timing.cpu_median},
          {"runs", timing.runs}};
}

// A report that says where and of what it was measured.
inline nlohmann::json Report(const std::string& name, const DeviceInfo& info) {
  return {{"benchmark", name},
          {"device", info.name},
          {"backend", info.backend},
          {"num_processors", info.num_processors},
          {"commit", std::string(common::kBuildRevision)},
          {"smoke", IsSmoke()}};
}

// At once, so that a benchmark that is interrupted has shown what it had.
inline void Print(const nlohmann::json& report) {
  std::printf("%s\n", report.dump(2).c_str());
  std::fflush(stdout);
}

}  // namespace retroinfer::bench
