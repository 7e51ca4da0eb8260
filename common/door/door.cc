// The data of an epoll event: a connection's address, whose lowest bit says which of its two
// sockets is meant; or one of the small numbers below.
#include "common/door/door.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock/steady_now.h"
#include "common/log/check.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr uint64_t kWakeTag = 2;
constexpr uint64_t kListenerTag = 4;  // of any listener
constexpr uint64_t kServerBit = 1;
constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr int kArrivalsAtOnce = 8;
constexpr absl::Duration kGreetingsTake = absl::Milliseconds(1);  // of a turn; then no new one
constexpr uint32_t kBothWays = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

void Watch(int poll, int operation, int fd, uint32_t events, uint64_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  ::epoll_ctl(poll, operation, fd, &event);
}

uint64_t TagOf(const DoorConnection* connection) {
  return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(connection));
}

std::string PeerName(int fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return "a client";
  if (name.ss_family == AF_UNIX) return "a unix socket";
  const bool v6 = name.ss_family == AF_INET6;
  const void* const address =
      v6 ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(&name)->sin6_addr)
         : &reinterpret_cast<const sockaddr_in*>(&name)->sin_addr;
  ::inet_ntop(name.ss_family, address, text.data(), text.size());
  return text.data();
}

}  // namespace

Door::Door(DoorOptions options)
    : options_(std::move(options)),
      budget_(options_.limits),
      arrivals_(options_.connections_per_second, 2 * options_.connections_per_second) {}

absl::StatusOr<std::unique_ptr<Door>> Door::Listen(DoorOptions options) {
  std::unique_ptr<Door> door(new Door(std::move(options)));
  const DoorOptions& wanted = door->options_;
  if (!wanted.tls.certificate.empty()) {
    ASSIGN_OR_RETURN(door->certificates_, TlsCertificates::Load(wanted.tls));
    door->counts_.certificate_expires = door->certificates_->expires();
    door->Publish();
  }
  for (const std::string& address : wanted.addresses) {
    ASSIGN_OR_RETURN(ListenSockets sockets, common::Listen(address));
    const bool is_unix = absl::StartsWith(address, kUnixScheme);
    const bool tls = door->certificates_ != nullptr && !is_unix;
    for (UniqueFd& socket : sockets.sockets) {
      door->listeners_.push_back(
          {std::move(socket), tls, is_unix ? address.substr(sizeof(kUnixScheme) - 1) : ""});
    }
    door->addresses_.push_back(sockets.address);
  }
  door->poll_.Reset(::epoll_create1(EPOLL_CLOEXEC));
  door->wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!door->poll_.valid() || !door->wake_.valid()) return ErrnoStatus(errno, "polling");
  return door;
}

Door::~Door() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

void Door::Open(std::function<void(int fd)> hand_over) {
  RI_CHECK(!thread_.joinable());
  context_ = {&options_.policy, &budget_, std::move(hand_over),
              [this](DoorConnection* connection) { WatchServer(connection); }, options_.timeouts};
  Watch(poll_.get(), EPOLL_CTL_ADD, wake_.get(), EPOLLIN, kWakeTag);
  for (const Listener& listener : listeners_) {
    Watch(poll_.get(), EPOLL_CTL_ADD, listener.socket.get(), EPOLLIN, kListenerTag);
  }
  thread_ = std::thread([this] { Run(); });
}

void Door::Wake() const {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

void Door::StopAccepting() {
  absl::MutexLock lock(&mutex_);
  if (!thread_.joinable()) return;
  stop_accepting_ = true;
  Wake();
  mutex_.Await(absl::Condition(&accepting_stopped_));
}

void Door::ReloadCertificates() {
  absl::MutexLock lock(&mutex_);
  reload_ = true;
  Wake();
}

void Door::AwaitEmpty(absl::Duration timeout) const {
  absl::MutexLock lock(&mutex_);
  const auto empty = [this]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stats_.connections == 0; };
  mutex_.AwaitWithTimeout(absl::Condition(&empty), timeout);
}

DoorStats Door::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

void Door::Publish() {
  counts_.connections = static_cast<int64_t>(connections_.size());
  counts_.open_calls = budget_.open_calls + budget_.abandoned;
  counts_.lost_calls = budget_.lost_calls_total;
  absl::MutexLock lock(&mutex_);
  stats_ = counts_;
}

void Door::Run() {
  // OpenSSL writes without MSG_NOSIGNAL; a client that is gone must not end the process.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  absl::Time now = SteadyNow();
  while (HandleCommands(now)) {
    WaitForEvents(now);
    now = SteadyNow();
    if (wants_accept_ && now >= accept_at_) Accept(now);
    PumpReady(now);
    CloseDone(now);
    if (now >= next_tick_) Tick(now);
  }
  ready_.clear();
  paused_.clear();
  connections_.clear();
  CloseListeners();
}

void Door::CloseListeners() {
  for (const Listener& listener : listeners_) {
    if (!listener.path.empty()) ::unlink(listener.path.c_str());
  }
  listeners_.clear();
  // Who has not greeted yet comes too late: the server is about to end.
  context_.hand_over = [](int fd) { ::close(fd); };
}

bool Door::HandleCommands(absl::Time now) {
  bool reload = false;
  {
    absl::MutexLock lock(&mutex_);
    if (stop_) return false;
    if (stop_accepting_ && !accepting_stopped_) {
      accepting_ = wants_accept_ = false;
      CloseListeners();
      accepting_stopped_ = true;
    }
    std::swap(reload, reload_);
  }
  if (reload) Reload(now);
  return true;
}

void Door::WaitForEvents(absl::Time now) {
  absl::Time until = next_tick_;
  if (!ready_.empty()) until = now;
  for (const Entry* entry : paused_) until = std::min(until, entry->connection->paused_until());
  if (wants_accept_) until = std::min(until, accept_at_);
  const absl::Duration wait = std::clamp(until - now, absl::ZeroDuration(), kTick);
  const int timeout = static_cast<int>(absl::ToInt64Milliseconds(wait + absl::Microseconds(999)));
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(poll_.get(), events.data(), events.size(), timeout);
  for (int i = 0; i < count; ++i) HandleEvent(events[i].data.u64, events[i].events);
}

void Door::HandleEvent(uint64_t tag, uint32_t events) {
  if (tag == kWakeTag) {
    uint64_t ignored = 0;
    (void)!::read(wake_.get(), &ignored, sizeof(ignored));
    return;
  }
  if (tag == kListenerTag) {
    wants_accept_ = accepting_;
    return;
  }
  auto* const connection = reinterpret_cast<DoorConnection*>(tag & ~kServerBit);
  const bool readable = (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  const bool writable = (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
  if ((tag & kServerBit) != 0) {
    connection->OnServerEvent(readable, writable);
  } else {
    connection->OnClientEvent(readable, writable);
  }
  MakeReady(&connections_.at(connection));
}

void Door::MakeReady(Entry* entry) {
  if (std::exchange(entry->ready, true)) return;
  ready_.push_back(entry);
}

void Door::PumpReady(absl::Time now) {
  std::vector<Entry*> paused;
  paused.swap(paused_);
  for (Entry* entry : paused) {
    if (entry->connection->paused_until() <= now) {
      MakeReady(entry);
    } else if (!entry->ready) {
      paused_.push_back(entry);
    }
  }
  std::vector<Entry*> ready;
  ready.swap(ready_);
  absl::Duration greetings;
  for (Entry* entry : ready) {
    const bool greets = entry->connection->greeting();
    if (greets && greetings >= kGreetingsTake) {
      ready_.push_back(entry);
      continue;
    }
    entry->ready = false;
    const absl::Time begin = greets ? SteadyNow() : now;
    const bool more = entry->connection->Pump(now);
    if (greets) greetings += SteadyNow() - begin;
    if (entry->connection->done()) {
      done_.push_back(entry->connection.get());
    } else if (entry->connection->paused_until() > now) {
      paused_.push_back(entry);
    } else if (more) {
      MakeReady(entry);
    }
  }
}

void Door::Tick(absl::Time now) {
  next_tick_ = now + kTick;
  for (auto& [connection, entry] : connections_) {
    connection->Tick(now);
    MakeReady(&entry);
  }
  if (now >= next_reload_) {
    next_reload_ = now + options_.reload_interval;
    Reload(now);
  }
  Publish();
}

void Door::CloseDone(absl::Time now) {
  if (done_.empty()) return;
  for (DoorConnection* connection : done_) {
    const auto found = connections_.find(connection);
    Entry* const entry = &found->second;
    if (!connection->error().ok()) LogClosed(*entry, now);
    ready_.erase(std::remove(ready_.begin(), ready_.end(), entry), ready_.end());
    paused_.erase(std::remove(paused_.begin(), paused_.end(), entry), paused_.end());
    connections_.erase(found);
  }
  done_.clear();
  Publish();
}

void Door::LogClosed(const Entry& entry, absl::Time now) {
  ++counts_.connections_closed;
  const std::optional<uint64_t> left_out = log_.Admit(now);
  if (!left_out.has_value()) return;
  spdlog::warn("closed a connection of {}: {}{}", entry.peer,
               std::string(entry.connection->error().message()),
               *left_out == 0 ? "" : absl::StrCat(" (and ", *left_out, " others since the last)"));
}

void Door::SetAccepting(bool accepting) {
  for (const Listener& listener : listeners_) {
    Watch(poll_.get(), EPOLL_CTL_MOD, listener.socket.get(),
          accepting ? static_cast<uint32_t>(EPOLLIN) : 0, kListenerTag);
  }
}

void Door::Accept(absl::Time now) {
  if (budget_.abandoned > budget_.limits.abandoned_calls_max) {
    accept_at_ = now + kTick;
    return SetAccepting(false);
  }
  bool any = true;
  for (int i = 0; i < kArrivalsAtOnce && any && arrivals_.Has(now); ++i) {
    any = false;
    for (const Listener& listener : listeners_) {
      UniqueFd socket(
          ::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.valid()) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) continue;
        accept_at_ = now + kTick;  // descriptors or memory may come back
        if (const auto left_out = log_.Admit(now)) {
          spdlog::warn("new connections wait: {} ({} other messages left out)",
                       std::string(ErrnoStatus(errno, "accepting one").message()), *left_out);
        }
        return SetAccepting(false);
      }
      any = true;
      arrivals_.Charge(now);
      LetIn(std::move(socket), listener.tls, now);
    }
  }
  wants_accept_ = any;
  accept_at_ = any ? arrivals_.NextAt(now) : now;
  SetAccepting(!any);
}

bool Door::MakeRoom(absl::Time now) {
  if (connections_.size() < static_cast<size_t>(options_.connections_max)) return true;
  const auto draining = std::count_if(connections_.begin(), connections_.end(),
                                      [](const auto& entry) { return entry.first->draining(); });
  if (static_cast<int64_t>(connections_.size()) - draining < options_.connections_max) return true;
  Entry* oldest = nullptr;
  const auto age = [](const Entry& entry) {
    return std::make_pair(entry.connection->had_calls(), entry.connection->idle_since());
  };
  for (auto& [connection, entry] : connections_) {
    if (connection->idle_since() == absl::InfiniteFuture()) continue;
    if (oldest == nullptr || age(entry) < age(*oldest)) oldest = &entry;
  }
  if (oldest == nullptr) return false;
  oldest->connection->Close(absl::ResourceExhaustedError("its place was needed"), now);
  MakeReady(oldest);
  return true;
}

void Door::LetIn(UniqueFd socket, bool tls, absl::Time now) {
  if (!MakeRoom(now)) {
    ++counts_.connections_refused;
    return;
  }
  ++counts_.connections_accepted;
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // no TCP: no effect
  Entry entry;
  entry.peer = PeerName(socket.get());
  entry.connection = std::make_unique<DoorConnection>(
      &context_, std::move(socket), tls ? certificates_->context() : nullptr, now);
  DoorConnection* const connection = entry.connection.get();
  Entry& stored = connections_.emplace(connection, std::move(entry)).first->second;
  Watch(poll_.get(), EPOLL_CTL_ADD, connection->client_fd(), kBothWays, TagOf(connection));
  MakeReady(&stored);
  Publish();
}

void Door::WatchServer(DoorConnection* connection) {
  Watch(poll_.get(), EPOLL_CTL_ADD, connection->server_fd(), kBothWays,
        TagOf(connection) | kServerBit);
}

void Door::Reload(absl::Time now) {
  if (certificates_ == nullptr) return;
  const absl::StatusOr<bool> changed = certificates_->Reload();
  if (!changed.ok()) {
    ++counts_.certificate_reloads_failed;
    spdlog::error("TLS goes on with the certificate that expires at {}: {}",
                  absl::FormatTime(certificates_->expires(), absl::UTCTimeZone()),
                  std::string(changed.status().message()));
  } else if (*changed) {
    spdlog::info("TLS has a new certificate, which expires at {}",
                 absl::FormatTime(certificates_->expires(), absl::UTCTimeZone()));
  }
  counts_.certificate_expires = certificates_->expires();
  next_reload_ = now + options_.reload_interval;
}

}  // namespace retroinfer::common
