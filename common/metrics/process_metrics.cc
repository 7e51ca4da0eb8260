#include "common/metrics/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace retroinfer::common {
namespace {

// Numbers of /proc/self/stat behind the name of the program, which may hold anything: the first of
// them is field 3 in proc(5).
constexpr size_t kUserTicks = 14 - 3;
constexpr size_t kSystemTicks = 15 - 3;
constexpr size_t kStartTicks = 22 - 3;
constexpr size_t kVirtualBytes = 23 - 3;
constexpr size_t kResidentPages = 24 - 3;

absl::StatusOr<std::vector<std::string>> ReadStat() {
  std::ifstream file("/proc/self/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(") ");
  if (name_end == std::string::npos) return absl::UnavailableError("cannot read /proc/self/stat");
  std::vector<std::string> fields =
      absl::StrSplit(text.substr(name_end + 2), ' ', absl::SkipWhitespace());
  if (fields.size() <= kResidentPages) {
    return absl::UnavailableError("/proc/self/stat has too few fields");
  }
  return fields;
}

// When the machine was started, in seconds since the epoch; 0 if that is not known.
double BootTimeSeconds() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    double seconds = 0;
    if (line.starts_with("btime ") && absl::SimpleAtod(line.substr(6), &seconds)) return seconds;
  }
  return 0;
}

double CountOpenFds() {
  std::error_code error;
  double count = 0;
  for (std::filesystem::directory_iterator fd("/proc/self/fd", error), end; !error && fd != end;
       fd.increment(error)) {
    ++count;
  }
  return count > 0 ? count - 1 : 0;  // without the one that reads the folder
}

double MaxFds() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? std::numeric_limits<double>::infinity()
                                         : static_cast<double>(limit.rlim_cur);
}

prometheus::Gauge& AddGauge(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
}

}  // namespace

absl::StatusOr<ProcessUsage> ReadProcessUsage() {
  const absl::StatusOr<std::vector<std::string>> fields = ReadStat();
  if (!fields.ok()) return fields.status();
  const auto number = [&fields](size_t index) {
    double value = 0;
    return absl::SimpleAtod((*fields)[index], &value) ? value : 0;
  };
  const auto ticks_per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  static const double boot_time_seconds = BootTimeSeconds();
  return ProcessUsage{
      .cpu_seconds = (number(kUserTicks) + number(kSystemTicks)) / ticks_per_second,
      .resident_bytes = number(kResidentPages) * static_cast<double>(::sysconf(_SC_PAGESIZE)),
      .virtual_bytes = number(kVirtualBytes),
      .open_fds = CountOpenFds(),
      .max_fds = MaxFds(),
      .start_time_seconds = boot_time_seconds + number(kStartTicks) / ticks_per_second};
}

ProcessMetrics::ProcessMetrics(prometheus::Registry& registry)
    : cpu_seconds_(prometheus::BuildCounter()
                       .Name("process_cpu_seconds_total")
                       .Help("User and system CPU time of the process")
                       .Register(registry)
                       .Add({})),
      resident_bytes_(AddGauge(registry, "process_resident_memory_bytes",
                               "Resident memory of the process, shared memory included")),
      virtual_bytes_(AddGauge(registry, "process_virtual_memory_bytes",
                              "Address space of the process that is mapped")),
      open_fds_(AddGauge(registry, "process_open_fds", "File descriptors that are open")),
      max_fds_(AddGauge(registry, "process_max_fds", "Most file descriptors that may be open")),
      start_time_seconds_(AddGauge(registry, "process_start_time_seconds",
                                   "When the process was started, in seconds since the epoch")) {}

void ProcessMetrics::Update() {
  const absl::StatusOr<ProcessUsage> usage = ReadProcessUsage();
  if (!usage.ok()) return;
  const double more_cpu = usage->cpu_seconds - cpu_seconds_.Value();
  if (more_cpu > 0) cpu_seconds_.Increment(more_cpu);
  resident_bytes_.Set(usage->resident_bytes);
  virtual_bytes_.Set(usage->virtual_bytes);
  open_fds_.Set(usage->open_fds);
  max_fds_.Set(usage->max_fds);
  start_time_seconds_.Set(usage->start_time_seconds);
}

}  // namespace retroinfer::common
