// Every call that the engine's thread makes to CUDA while sequences decode, as CUPTI sees it: the
// whole engine in this process, the demo model, policy wave. Prints a table of the calls of a
// step, one step as it was, and a JSON object with the host's time. Fails unless a step is one
// launch of a recorded graph and one wait for its tokens, with no other wait, copy that waits,
// allocation or free, on any thread.
//
//   RETROINFER_TEST_BACKEND=Cuda step_trace_bench [FOLDER_OF_MODEL]
//
// Two stretches of the same streams: traced, so long that all of them get a new segment, whose
// construction is enqueued between the steps; and not traced, for the time.
#include <cupti.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "bench/support/measure.h"
#include "build_paths.h"
#include "common/log/check.h"
#include "tests/support/in_process_worker.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;

constexpr int kBatch = 8;
constexpr uint64_t kUntracedSteps = 400;
constexpr uint64_t kTracedSteps = 1200;  // more than the tokens of a segment
constexpr int64_t kPromptTokens = 12'000;
constexpr int32_t kMaxTokens =
    12'000;  // the first streams decode while others' prompts are computed
constexpr size_t kMaxCalls = size_t{1} << 18;

int64_t NowNs() { return absl::GetCurrentTimeNanos(); }
pid_t ThreadId() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

struct Call {
  const char* name = nullptr;
  pid_t thread = 0;
  bool is_inner = false;  // a call of the driver that the runtime makes for a call of ours
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

// Without the version that CUPTI appends.
std::string Name(const Call& call) {
  std::string_view name = call.name;
  if (const size_t at = name.rfind("_v"); at != std::string_view::npos && at + 2 < name.size() &&
                                          std::isdigit(static_cast<unsigned char>(name[at + 2]))) {
    name = name.substr(0, at);
  }
  return std::string(name);
}

bool Has(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

bool Allocates(std::string_view name) {
  for (const char* part : {"Malloc", "Free", "MemAlloc", "HostAlloc", "HostRegister",
                           "HostUnregister", "MemCreate", "MemMap", "MemRelease", "Instantiate",
                           "ModuleLoad", "LibraryLoad", "StreamCreate", "EventCreate", "MemPool"}) {
    if (Has(name, part)) return true;
  }
  return false;
}

// Whether the host waits for the device.
bool Waits(std::string_view name) {
  if (Has(name, "Synchronize")) return true;
  const bool copies = Has(name, "Memcpy") || Has(name, "Memset") || name.starts_with("cuMemcpy") ||
                      name.starts_with("cuMemset");
  return copies && !Has(name, "Async");
}

// Calls to the runtime and the driver, of all threads.
class ApiTrace {
 public:
  ApiTrace() {
    RI_CHECK(cuptiSubscribe(&subscriber_, &ApiTrace::OnCall, this) == CUPTI_SUCCESS);
    for (const CUpti_CallbackDomain domain :
         {CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_CB_DOMAIN_DRIVER_API}) {
      RI_CHECK(cuptiEnableDomain(1, subscriber_, domain) == CUPTI_SUCCESS);
    }
  }
  ~ApiTrace() { (void)cuptiUnsubscribe(subscriber_); }

  void Start() {
    num_calls_ = 0;
    is_recording_ = true;
  }
  // The calls since Start() that have ended.
  std::vector<Call> Stop() {
    is_recording_ = false;
    absl::SleepFor(absl::Milliseconds(20));  // whoever is in a call leaves it
    RI_CHECK(num_calls_ <= kMaxCalls);
    std::vector<Call> calls(calls_.begin(), calls_.begin() + static_cast<ptrdiff_t>(num_calls_));
    std::erase_if(calls, [](const Call& call) { return call.end_ns == 0; });
    return calls;
  }

 private:
  static void CUPTIAPI OnCall(void* trace, CUpti_CallbackDomain domain, CUpti_CallbackId /*id*/,
                              const void* data) {
    static_cast<ApiTrace*>(trace)->Record(domain == CUPTI_CB_DOMAIN_RUNTIME_API,
                                          *static_cast<const CUpti_CallbackData*>(data));
  }

  void Record(bool is_runtime, const CUpti_CallbackData& data) {
    static thread_local int depth = 0;  // of calls to the runtime
    if (data.callbackSite == CUPTI_API_ENTER) {
      *data.correlationData = kMaxCalls;
      if (const size_t index = is_recording_ ? num_calls_++ : kMaxCalls; index < kMaxCalls) {
        *data.correlationData = index;
        calls_[index] = {data.functionName, ThreadId(), depth > 0, NowNs(), 0};
      }
      if (is_runtime) ++depth;
      return;
    }
    if (is_runtime && depth > 0) --depth;  // it may have begun before there was a trace
    if (*data.correlationData < kMaxCalls) calls_[*data.correlationData].end_ns = NowNs();
  }

  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::vector<Call> calls_ = std::vector<Call>(kMaxCalls);
  std::atomic<size_t> num_calls_ = 0;
  std::atomic<bool> is_recording_ = false;
};

// CPU time of a thread of this process.
int64_t ThreadCpuNs(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/schedstat");
  int64_t ns = 0;
  file >> ns;
  return ns;
}

// Steps of one stretch, from the launch of one to the launch of another.
struct Stretch {
  std::vector<Call> calls;  // of the engine's thread, inner ones left out
  std::vector<size_t> launches;
  std::map<std::string, int> forbidden;  // of all threads
  size_t waits = 0;
  double waited_us = 0;
  double wall_us = 0;
  pid_t thread = 0;

  size_t num_steps() const { return launches.size() - 1; }
};

Stretch Examine(const std::vector<Call>& all) {
  Stretch stretch;
  std::vector<int64_t> launched;
  for (const Call& call : all) {
    if (call.is_inner || Name(call) != "cudaGraphLaunch") continue;
    RI_CHECK(stretch.thread == 0 || stretch.thread == call.thread);
    stretch.thread = call.thread;
    launched.push_back(call.begin_ns);
  }
  RI_CHECK(launched.size() > 2);
  for (const Call& call : all) {
    if (call.begin_ns < launched.front() || call.begin_ns >= launched.back()) continue;
    const std::string name = Name(call);
    if (Allocates(name)) ++stretch.forbidden[name];
    if (call.thread != stretch.thread || call.is_inner) continue;
    if (name == "cudaEventSynchronize") {
      ++stretch.waits;
      stretch.waited_us += static_cast<double>(call.end_ns - call.begin_ns) / 1e3;
    } else if (Waits(name)) {
      ++stretch.forbidden[name];
    }
    if (name == "cudaGraphLaunch") stretch.launches.push_back(stretch.calls.size());
    stretch.calls.push_back(call);
  }
  stretch.launches.push_back(stretch.calls.size());
  stretch.wall_us = static_cast<double>(launched.back() - launched.front()) / 1e3;
  return stretch;
}

// The steps around which nothing else was enqueued: neither the upkeep of the block cache nor a
// segment's construction.
Stretch PlainSteps(const Stretch& all) {
  Stretch plain;
  for (size_t i = 0; i + 1 < all.launches.size(); ++i) {
    const auto begin = all.calls.begin() + static_cast<ptrdiff_t>(all.launches[i]);
    const auto end = all.calls.begin() + static_cast<ptrdiff_t>(all.launches[i + 1]);
    // Each step has one copy, of its number.
    const auto copies =
        std::count_if(begin, end, [](const Call& call) { return Has(Name(call), "Memcpy"); });
    const bool launches =
        std::any_of(begin, end, [](const Call& call) { return Has(Name(call), "LaunchKernel"); });
    if (launches || copies > 1) continue;
    plain.launches.push_back(plain.calls.size());
    plain.calls.insert(plain.calls.end(), begin, end);
  }
  plain.launches.push_back(plain.calls.size());
  return plain;
}

void PrintTable(const char* title, const Stretch& stretch) {
  std::map<std::string, std::pair<size_t, double>> table;
  for (const Call& call : stretch.calls) {
    auto& [count, us] = table[Name(call)];
    ++count;
    us += static_cast<double>(call.end_ns - call.begin_ns) / 1e3;
  }
  const auto steps = static_cast<double>(stretch.num_steps());
  std::printf("%s: %zu steps\n%-28s %10s %10s\n", title, stretch.num_steps(),
              "call of the engine's thread", "a step", "us each");
  for (const auto& [name, row] : table) {
    std::printf("%-28s %10.3f %10.2f\n", name.c_str(), static_cast<double>(row.first) / steps,
                row.second / static_cast<double>(row.first));
  }
}

// A step that took as long as most.
void PrintStep(const Stretch& stretch) {
  std::vector<std::pair<int64_t, size_t>> lengths;
  for (size_t i = 0; i < stretch.num_steps(); ++i) {
    const Call& last = stretch.calls[stretch.launches[i + 1] - 1];
    lengths.emplace_back(last.end_ns - stretch.calls[stretch.launches[i]].begin_ns, i);
  }
  if (lengths.empty()) return;
  std::sort(lengths.begin(), lengths.end());
  const size_t step = lengths[lengths.size() / 2].second;
  const int64_t begin = stretch.calls[stretch.launches[step]].begin_ns;
  std::printf("one step, from its launch up to the next one:\n");
  for (size_t i = stretch.launches[step]; i < stretch.launches[step + 1]; ++i) {
    const Call& call = stretch.calls[i];
    std::printf("%10.1f us  %-24s %8.1f us\n", static_cast<double>(call.begin_ns - begin) / 1e3,
                Name(call).c_str(), static_cast<double>(call.end_ns - call.begin_ns) / 1e3);
  }
}

bool IsRight(const Stretch& stretch) {
  bool right = stretch.waits == stretch.num_steps();
  if (!right) {
    std::fprintf(stderr, "step_trace_bench: %zu waits in %zu steps\n", stretch.waits,
                 stretch.num_steps());
  }
  for (const auto& [name, count] : stretch.forbidden) {
    std::fprintf(stderr, "step_trace_bench: %d calls of %s\n", count, name.c_str());
    right = false;
  }
  return right;
}

nlohmann::json ToJson(const Stretch& stretch) {
  const auto steps = static_cast<double>(stretch.num_steps());
  return {{"steps", stretch.num_steps()},
          {"step_us", stretch.wall_us / steps},
          {"waits_a_step", static_cast<double>(stretch.waits) / steps},
          // Tracing itself included.
          {"host_us_a_step", (stretch.wall_us - stretch.waited_us) / steps}};
}

// Streams that all decode.
class Streams {
 public:
  explicit Streams(InProcessWorker& worker) : worker_(worker) {
    for (int i = 0; i < kBatch; ++i) {
      sinks_.push_back(worker.Submit(worker.Greedy(
          test_support::RandomPrompt(kPromptTokens, 1000, static_cast<uint64_t>(i)), kMaxTokens)));
    }
    // The last prompt is computed, and steps with all of them have been recorded.
    while (stats().prompt_tokens < kBatch * kPromptTokens) absl::SleepFor(absl::Milliseconds(1));
    WaitForSteps(30);
  }

  EngineStats stats() const { return worker_.engine().stats(); }
  void WaitForSteps(uint64_t count) const {
    const uint64_t end = stats().decode_steps + count;
    while (stats().decode_steps < end) {
      for (const auto& sink : sinks_) RI_CHECK(!sink->finished());
      absl::SleepFor(absl::Microseconds(200));
    }
  }

 private:
  InProcessWorker& worker_;
  std::vector<std::shared_ptr<CollectingSink>> sinks_;
};

// What the engine itself counts, without a trace.
nlohmann::json MeasureUntraced(const Streams& streams, pid_t engine_thread) {
  const EngineStats before = streams.stats();
  const int64_t begin = NowNs(), cpu_begin = ThreadCpuNs(engine_thread);
  streams.WaitForSteps(kUntracedSteps);
  const EngineStats after = streams.stats();
  const int64_t end = NowNs(), cpu_end = ThreadCpuNs(engine_thread);
  const auto steps = static_cast<double>(after.decode_steps - before.decode_steps);
  RI_CHECK(after.decode_graphs_launched - before.decode_graphs_launched ==
           after.decode_steps - before.decode_steps);
  return {{"steps", steps},
          {"step_us", static_cast<double>(end - begin) / 1e3 / steps},
          {"host_us_a_step_in_steps",
           1e6 * (after.decode_host_seconds - before.decode_host_seconds) / steps},
          {"host_us_a_step_in_all", 1e6 * (after.busy_seconds - before.busy_seconds) / steps},
          // Waiting for an event may be spinning.
          {"cpu_us_a_step_with_waiting", static_cast<double>(cpu_end - cpu_begin) / 1e3 / steps}};
}

int Main(int argc, char** argv) {
  const char* const backend = std::getenv("RETROINFER_TEST_BACKEND");
  if (backend == nullptr || std::string_view(backend) != "Cuda") {
    std::fprintf(stderr,
                 "step_trace_bench: set RETROINFER_TEST_BACKEND=Cuda on a machine with a "
                 "GPU; there is nothing to trace on the CPU\n");
    return bench::IsSmoke() ? 0 : 2;
  }
  test_support::InProcessWorkerOptions options;
  options.model_folder = argc > 1 ? argv[1] : RETROINFER_SOURCE_DIR "/models/needle";
  options.max_batch = kBatch;
  options.max_model_len = kPromptTokens + kMaxTokens;
  options.arena_bytes = size_t{4} << 30;
  options.block_cache_bytes = size_t{512} << 20;
  InProcessWorker worker(options);
  Streams streams(worker);
  auto trace = std::make_unique<ApiTrace>();
  trace->Start();
  streams.WaitForSteps(kTracedSteps);
  const Stretch steps = Examine(trace->Stop());
  trace.reset();  // a call costs more while somebody watches
  const nlohmann::json untraced = MeasureUntraced(streams, steps.thread);
  const EngineStats stats = streams.stats();
  const Stretch plain = PlainSteps(steps);
  PrintTable("steps with nothing else between them", plain);
  PrintStep(plain);
  PrintTable("all steps, the construction of segments and the block cache's upkeep", steps);
  nlohmann::json report = bench::Report("step_trace", worker.device().info());
  report["batch"] = kBatch;
  report["prompt_tokens"] = kPromptTokens;
  report["not_traced"] = untraced;
  report["traced"] = ToJson(steps);
  report["segments_built"] = stats.segments_built;
  report["graphs_recorded"] = stats.decode_graphs_recorded;
  bench::Print(report);
  return IsRight(steps) ? 0 : 1;
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) { return retroinfer::Main(argc, argv); }
