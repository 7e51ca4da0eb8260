#include "common/service/service_notifier.h"

#include <spdlog/spdlog.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status/errno_status.h"

namespace retroinfer::common {
namespace {

constexpr int64_t kFeedsPerPeriod = 4;
// A manager that does not read for so long does not hear; the service goes on.
constexpr timeval kSendTimeout{.tv_sec = 1, .tv_usec = 0};

int64_t MonotonicNs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Takes a variable out of the environment.
std::string Take(const char* name) {
  const char* const value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  ::unsetenv(name);
  return text;
}

// A status is one line: the next one would be another statement.
std::string StatusLine(std::string_view status) {
  std::string line = "STATUS=" + std::string(status);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

}  // namespace

absl::StatusOr<ServiceNotifier> ServiceNotifier::Create(std::string_view socket,
                                                        absl::Duration watchdog_period) {
  ServiceNotifier notifier;
  sockaddr_un& address = notifier.address_;
  address.sun_family = AF_UNIX;
  if (socket.size() < 2 || (socket[0] != '/' && socket[0] != '@') ||
      socket.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the service manager's socket '", std::string(socket),
                     "' is neither a path nor '@' and a name of up to ",
                     sizeof(address.sun_path) - 1, " bytes"));
  }
  std::memcpy(address.sun_path, socket.data(), socket.size());
  if (socket[0] == '@') address.sun_path[0] = '\0';
  // An abstract name has no terminator: its length says where it ends.
  notifier.address_bytes_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket.size() +
                                                   (socket[0] == '@' ? 0 : 1));
  notifier.fd_ = UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!notifier.fd_.valid()) return ErrnoStatus(errno, "socket for the service manager");
  ::setsockopt(notifier.fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendTimeout, sizeof(kSendTimeout));
  notifier.watchdog_period_ = watchdog_period;
  return notifier;
}

ServiceNotifier ServiceNotifier::FromEnvironment() {
  const std::string socket = Take("NOTIFY_SOCKET");
  const std::string period_us = Take("WATCHDOG_USEC");
  const std::string watched_pid = Take("WATCHDOG_PID");
  if (socket.empty()) return ServiceNotifier();
  absl::Duration period;
  int64_t number = 0;
  if (absl::SimpleAtoi(period_us, &number) && number > 0 &&
      (watched_pid.empty() || watched_pid == std::to_string(::getpid()))) {
    period = absl::Microseconds(number);
  }
  absl::StatusOr<ServiceNotifier> notifier = Create(socket, period);
  if (notifier.ok()) return *std::move(notifier);
  spdlog::warn("the service manager hears nothing: {}", std::string(notifier.status().message()));
  return ServiceNotifier();
}

ServiceNotifier::ServiceNotifier(ServiceNotifier&& other) noexcept
    : fd_(std::move(other.fd_)),
      address_(other.address_),
      address_bytes_(other.address_bytes_),
      watchdog_period_(other.watchdog_period_) {}

bool ServiceNotifier::Send(std::string_view lines, int flags) const {
  if (is_silent()) return false;
  ssize_t sent = 0;
  do {
    sent = ::sendto(fd_.get(), lines.data(), lines.size(), flags | MSG_NOSIGNAL,
                    reinterpret_cast<const sockaddr*>(&address_), address_bytes_);
  } while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

void ServiceNotifier::Ready(std::string_view status) const {
  Send(absl::StrCat("READY=1\n", StatusLine(status)));
}

void ServiceNotifier::Status(std::string_view status) const { Send(StatusLine(status)); }

void ServiceNotifier::Progress(std::string_view status, absl::Duration more) const {
  Send(absl::StrCat(StatusLine(status), "\nEXTEND_TIMEOUT_USEC=", absl::ToInt64Microseconds(more)));
}

void ServiceNotifier::Reloading() const {
  // The time tells systemd which reload of several this is about.
  Send(absl::StrCat("RELOADING=1\nMONOTONIC_USEC=", MonotonicNs() / 1000));
}

void ServiceNotifier::Stopping(std::string_view status) const {
  Send(absl::StrCat("STOPPING=1\n", StatusLine(status)));
}

void ServiceNotifier::Feed() const {
  if (is_silent() || watchdog_period_ <= absl::ZeroDuration()) return;
  const int64_t now = MonotonicNs();
  if (now < next_feed_ns_.load(std::memory_order_relaxed)) return;
  // What the manager has no room for is said again in the next round.
  if (!Send("WATCHDOG=1", MSG_DONTWAIT)) return;
  next_feed_ns_.store(now + absl::ToInt64Nanoseconds(watchdog_period_) / kFeedsPerPeriod,
                      std::memory_order_relaxed);
}

}  // namespace retroinfer::common
