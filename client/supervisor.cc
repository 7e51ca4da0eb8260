#include "client/supervisor.h"

#include <signal.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/status/status_macros.h"

namespace retroinfer::client {
namespace {

constexpr absl::Duration kFirstDelay = absl::Milliseconds(500);
constexpr absl::Duration kLongestDelay = absl::Seconds(30);
constexpr absl::Duration kStable = absl::Minutes(1);  // a process that lived so long is well
constexpr absl::Duration kPollInterval = absl::Milliseconds(50);
constexpr absl::Duration kProbeTimeout = absl::Milliseconds(500);
constexpr std::streamoff kLogEndBytes = 8192;
constexpr size_t kLogEndLines = 15;

// The last lines of a log, for the end of a message; empty if there are none.
std::string LogEnd(const std::string& path) {
  std::ifstream file(path, std::ios::ate);
  if (path.empty() || !file) return "";
  const std::streamoff size = file.tellg();
  file.seekg(std::max(size - kLogEndBytes, std::streamoff{0}));
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
    if (lines.size() > kLogEndLines) lines.pop_front();
  }
  if (lines.empty()) return "";
  return absl::StrCat("; its log ends with\n", absl::StrJoin(lines, "\n"));
}

}  // namespace

absl::Duration RestartDelay::Next(absl::Time started, absl::Time now) {
  if (now - started >= kStable) next_ = kFirstDelay;
  return std::exchange(next_, std::min(next_ * 2, kLongestDelay));
}

Supervisor::Supervisor(std::string command, std::vector<ServiceSpec> specs,
                       std::function<int()> should_stop, const Streams& streams)
    : command_(std::move(command)), should_stop_(std::move(should_stop)), streams_(streams) {
  for (ServiceSpec& spec : specs) {
    Service& service = services_.emplace_back();
    service.probe = std::make_unique<HealthProbe>(spec.health_address);
    service.spec = std::move(spec);
  }
}

absl::Status Supervisor::StartService(Service& service) {
  std::vector<std::string> arguments = service.spec.arguments;
  if (service.spec.counts_restarts) {
    arguments.push_back(absl::StrCat("--restarts=", service.starts));
  }
  ASSIGN_OR_RETURN(service.process, ChildProcess::Start(arguments, service.spec.output));
  ++service.starts;
  service.started = absl::Now();
  service.serving = false;
  return absl::OkStatus();
}

absl::Status Supervisor::AwaitServing(Service& service) {
  while (true) {
    if (should_stop_() > 0) return absl::CancelledError("stopped");
    RETURN_IF_ERROR(Check());
    if (service.probe->IsServing(kProbeTimeout)) {
      service.serving = true;
      return absl::OkStatus();
    }
    absl::SleepFor(kPollInterval);
  }
}

absl::Status Supervisor::Start() {
  for (Service& service : services_) {
    RETURN_IF_ERROR(StartService(service));
    RETURN_IF_ERROR(AwaitServing(service));
  }
  return absl::OkStatus();
}

absl::Status Supervisor::Check() {
  for (Service& service : services_) {
    if (!service.process.has_value()) continue;
    const std::optional<ProcessEnd> end = service.process->Poll();
    if (!end.has_value()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        service.spec.name, service.serving ? " ended: " : " ended before it served anything: ",
        end->ToString(), LogEnd(service.spec.log_path)));
  }
  return absl::OkStatus();
}

void Supervisor::Tend(Service& service) {
  const absl::Time now = absl::Now();
  if (service.process.has_value()) {
    const std::optional<ProcessEnd> end = service.process->Poll();
    if (!end.has_value()) {
      if (!service.serving && service.probe->IsServing(kProbeTimeout)) {
        service.serving = true;
        std::fprintf(streams_.err, "retroinfer %s: %s is serving again\n", command_.c_str(),
                     service.spec.name.c_str());
      }
      return;
    }
    service.process.reset();
    const absl::Duration delay = service.delay.Next(service.started, now);
    service.restart_at = now + delay;
    std::fprintf(streams_.err, "retroinfer %s: %s died (%s), restarting it in %s\n",
                 command_.c_str(), service.spec.name.c_str(), end->ToString().c_str(),
                 absl::FormatDuration(delay).c_str());
    return;
  }
  if (now < service.restart_at) return;
  if (const absl::Status status = StartService(service); !status.ok()) {
    service.restart_at = now + service.delay.Next(now, now);
    std::fprintf(streams_.err, "retroinfer %s: %s\n", command_.c_str(),
                 std::string(status.message()).c_str());
  }
}

void Supervisor::Watch() {
  while (should_stop_() == 0) {
    for (Service& service : services_) Tend(service);
    absl::SleepFor(kPollInterval);
  }
}

void Supervisor::Stop() {
  for (auto service = services_.rbegin(); service != services_.rend(); ++service) {
    if (!service->process.has_value()) continue;
    ChildProcess& process = *service->process;
    const int signals = should_stop_();
    const absl::Time deadline = absl::Now() + service->spec.stop_grace;
    process.Signal(SIGTERM);
    bool killed = false;
    while (!process.Wait(kPollInterval).has_value()) {
      if (absl::Now() < deadline && should_stop_() < std::max(signals, 1) + 1) continue;
      if (std::exchange(killed, true)) continue;  // the kernel takes its time with large memory
      std::fprintf(streams_.err, "retroinfer %s: killing %s\n", command_.c_str(),
                   service->spec.name.c_str());
      process.Signal(SIGKILL);
    }
    service->process.reset();
  }
}

}  // namespace retroinfer::client
