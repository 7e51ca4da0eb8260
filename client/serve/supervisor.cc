#include "client/serve/supervisor.h"

#include <signal.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/command/exit_code.h"
#include "client/serve/http_probe.h"
#include "client/serve/settings_check.h"
#include "common/clock/steady_now.h"
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
constexpr int kSignalsToHurry = 2;
constexpr int kSignalsToKill = 3;

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

// Settings that make no sense now will make none when the service is started again.
bool IsRefusal(const ProcessEnd& end) { return end.signal == 0 && end.exit_code == kExitUsage; }

absl::Status EndError(const ProcessEnd& end, const std::string& message) {
  return IsRefusal(end) ? absl::InvalidArgumentError(message)
                        : absl::FailedPreconditionError(message);
}

}  // namespace

absl::Duration RestartDelay::Next(absl::Time started, absl::Time now) {
  if (now - started >= kStable) next_ = kFirstDelay;
  return std::exchange(next_, std::min(next_ * 2, kLongestDelay));
}

Supervisor::Supervisor(std::vector<ServiceSpec> specs, std::function<int()> should_stop,
                       Report report)
    : should_stop_(std::move(should_stop)), report_(std::move(report)) {
  for (ServiceSpec& spec : specs) {
    Service& service = services_.emplace_back();
    if (!spec.health_is_http) service.probe = std::make_unique<HealthProbe>(spec.health_address);
    service.spec = std::move(spec);
  }
}

bool Supervisor::IsServing(Service& service) {
  return service.spec.health_is_http ? AnswersHttp(service.spec.health_address, kProbeTimeout)
                                     : service.probe->IsServing(kProbeTimeout);
}

absl::Status Supervisor::StartService(Service& service) {
  std::vector<std::string> arguments = service.spec.arguments;
  if (service.spec.counts_restarts) {
    arguments.push_back(absl::StrCat("--restarts=", service.starts));
  }
  ASSIGN_OR_RETURN(service.process, ChildProcess::Start(arguments, service.spec.output));
  ++service.starts;
  service.started = common::SteadyNow();
  service.serving = false;
  return absl::OkStatus();
}

absl::Status Supervisor::AwaitServing(Service& service) {
  while (true) {
    if (should_stop_() > 0) return absl::CancelledError("stopped");
    RETURN_IF_ERROR(Check());
    ForwardReload();
    if (IsServing(service)) {
      service.serving = true;
      return absl::OkStatus();
    }
    absl::SleepFor(kPollInterval);
  }
}

absl::Status Supervisor::Start() {
  for (const Service& service : services_) {
    if (service.spec.checks_settings) {
      RETURN_IF_ERROR(CheckSettings(service.spec, should_stop_));
    }
  }
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
    return EndError(
        *end, absl::StrCat(service.spec.name,
                           service.serving ? " ended: " : " ended before it served anything: ",
                           end->ToString(), LogEnd(service.spec.log_path)));
  }
  return absl::OkStatus();
}

void Supervisor::ForwardReload() {
  if (!reload_.exchange(false)) return;
  for (Service& service : services_) {
    if (service.process.has_value()) service.process->Signal(SIGHUP);
  }
}

absl::Status Supervisor::NoteDeath(Service& service, const ProcessEnd& end) {
  const std::string& name = service.spec.name;
  service.quick_deaths = service.serving ? 0 : service.quick_deaths + 1;
  service.process.reset();
  if (IsRefusal(end)) {
    return EndError(end, absl::StrCat(name, " does not take its settings: it ended with ",
                                      end.ToString(), LogEnd(service.spec.log_path)));
  }
  if (service.quick_deaths >= kQuickDeathsMax) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " ended ", service.quick_deaths,
                     " times in a row before it served anything, now with ", end.ToString(),
                     LogEnd(service.spec.log_path)));
  }
  const absl::Time now = common::SteadyNow();
  const absl::Duration delay = service.delay.Next(service.started, now);
  service.restart_at = now + delay;
  report_(Severity::kWarning, absl::StrCat(name, " died (", end.ToString(), "), restarting it in ",
                                           absl::FormatDuration(delay)));
  return absl::OkStatus();
}

absl::Status Supervisor::Tend(Service& service) {
  if (service.process.has_value()) {
    const std::optional<ProcessEnd> end = service.process->Poll();
    if (end.has_value()) return NoteDeath(service, *end);
    if (!service.serving && IsServing(service)) {
      service.serving = true;
      report_(Severity::kInfo, absl::StrCat(service.spec.name, " is serving again"));
    }
    return absl::OkStatus();
  }
  const absl::Time now = common::SteadyNow();
  if (now < service.restart_at) return absl::OkStatus();
  if (const absl::Status status = StartService(service); !status.ok()) {
    service.restart_at = now + service.delay.Next(now, now);
    report_(Severity::kWarning, std::string(status.message()));
  }
  return absl::OkStatus();
}

absl::Status Supervisor::Watch() {
  while (should_stop_() == 0) {
    for (Service& service : services_) RETURN_IF_ERROR(Tend(service));
    ForwardReload();
    absl::SleepFor(kPollInterval);
  }
  return absl::OkStatus();
}

void Supervisor::Stop() {
  const absl::Time stop_begun = common::SteadyNow();
  for (const bool first : {true, false}) {
    for (auto service = services_.rbegin(); service != services_.rend(); ++service) {
      if (service->spec.stops_first == first) StopService(*service, stop_begun);
    }
  }
}

void Supervisor::StopService(Service& service, absl::Time stop_begun) {
  if (!service.process.has_value()) return;
  const ServiceSpec& spec = service.spec;
  ChildProcess& process = *service.process;
  const bool drains = spec.drain_timeout > absl::ZeroDuration();
  const absl::Time drained = std::max(common::SteadyNow(), stop_begun + spec.drain_timeout);
  absl::Time deadline = drained + spec.stop_grace;
  bool hurried = false;
  bool told_again = false;
  bool killed = false;
  process.Signal(SIGTERM);
  while (!process.Wait(kPollInterval).has_value()) {
    const absl::Time now = common::SteadyNow();
    const int signals = should_stop_();
    if (signals >= kSignalsToHurry && !hurried) {
      deadline = std::min(deadline, now + kHurryTime);
      hurried = true;
    }
    if (drains && !told_again && (hurried || now >= drained)) {
      process.Signal(SIGTERM);
      told_again = true;
    }
    if (killed || (now < deadline && signals < kSignalsToKill)) continue;
    report_(Severity::kWarning, absl::StrCat("killing ", spec.name));
    process.Signal(SIGKILL);  // what it was doing in the kernel may go on for a while
    killed = true;
  }
  service.process.reset();
}

}  // namespace retroinfer::client
