#include "kv_store_service/server/descriptor_server.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock/steady_now.h"
#include "common/shm/descriptor_protocol.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

constexpr int kPollMs = 200;
constexpr int kTendPollMs = 20;  // while the store waits for a process to be gone
constexpr absl::Duration kSendTimeout = absl::Seconds(1);

constexpr uint32_t TypeOf(DescriptorMessage message) { return static_cast<uint32_t>(message); }

}  // namespace

absl::StatusOr<std::unique_ptr<DescriptorServer>> DescriptorServer::Start(const std::string& path,
                                                                          KvStore* store,
                                                                          const Options& options) {
  ASSIGN_OR_RETURN(common::FdListener listener, common::FdListener::Listen(path));
  common::UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return common::ErrnoStatus(errno, "creating an eventfd");
  std::unique_ptr<DescriptorServer> server(
      new DescriptorServer(std::move(listener), std::move(wake), store, options));
  server->thread_ = std::thread([raw = server.get()] { raw->Loop(); });
  return server;
}

DescriptorServer::DescriptorServer(common::FdListener listener, common::UniqueFd wake,
                                   KvStore* store, const Options& options)
    : listener_(std::move(listener)), wake_(std::move(wake)), store_(store), options_(options) {}

DescriptorServer::~DescriptorServer() {
  stop_ = true;
  ::eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void DescriptorServer::Loop() {
  std::vector<pollfd> polled;
  int poll_ms = kPollMs;
  bool accepts = true;
  while (!stop_) {
    // Without descriptors for whoever waits, this would be called again and again.
    const short of_listener = accepts ? POLLIN : 0;
    polled.assign({{wake_.get(), POLLIN, 0}, {listener_.fd(), of_listener, 0}});
    if (lease_.has_value()) polled.push_back({lease_->channel.fd(), POLLIN, 0});
    const size_t first_pending = polled.size();
    for (const Pending& pending : pending_) polled.push_back({pending.channel.fd(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), poll_ms) < 0 && errno != EINTR) {
      spdlog::error("descriptor socket: {}",
                    std::string(common::ErrnoStatus(errno, "poll").message()));
      absl::SleepFor(absl::Milliseconds(kPollMs));
    }
    if (lease_.has_value() && polled[2].revents != 0) ReadLease();
    if (lease_.has_value() && !store_->leases().HasLease(lease_->token)) lease_.reset();
    size_t index = first_pending;
    for (auto pending = pending_.begin(); pending != pending_.end(); ++index) {
      const bool done = polled[index].revents != 0 && Greet(&*pending);
      pending = done ? pending_.erase(pending) : std::next(pending);
    }
    accepts = polled[1].revents == 0 || AcceptAll();
    DropLate(common::SteadyNow());
    poll_ms = store_->leases().Tend(common::SteadyNow()) ? kTendPollMs : kPollMs;
  }
}

bool DescriptorServer::AcceptAll() {
  while (pending_.size() < options_.pending_max) {
    absl::StatusOr<common::FdChannel> channel = listener_.Accept();
    if (absl::IsUnavailable(channel.status())) return true;
    if (!channel.ok()) {
      if (const auto suppressed = refusal_log_.Admit(common::SteadyNow())) {
        spdlog::warn("descriptor socket: {} ({} similar messages left out)",
                     std::string(channel.status().message()), *suppressed);
      }
      return false;
    }
    pending_.push_back({*std::move(channel), common::SteadyNow() + options_.greeting_timeout});
  }
  // The queue of the socket is full of silent connections: the oldest makes room.
  pending_.pop_front();
  return true;
}

void DescriptorServer::DropLate(absl::Time now) {
  pending_.remove_if([now](const Pending& pending) { return now >= pending.deadline; });
}

bool DescriptorServer::Greet(Pending* pending) {
  const absl::Status status = Admit(pending);
  if (status.ok()) return true;
  if (const auto suppressed = refusal_log_.Admit(common::SteadyNow())) {
    spdlog::warn("descriptor socket: refused process {}: {} ({} similar messages left out)",
                 pending->channel.peer_pid(), std::string(status.message()), *suppressed);
  }
  const std::string text(status.message().substr(0, 1024));
  // The peer may be gone; that is its own affair.
  (void)pending->channel.Send(TypeOf(DescriptorMessage::kRefused), text, {}, absl::ZeroDuration());
  return true;
}

absl::Status DescriptorServer::Admit(Pending* pending) {
  RETURN_IF_ERROR(pending->channel.RequireSameUser());
  ASSIGN_OR_RETURN(common::FdMessage message, pending->channel.Receive(absl::ZeroDuration()));
  const pid_t pid = pending->channel.peer_pid();
  const std::string token = message.payload;
  if (message.type == TypeOf(DescriptorMessage::kHello) && message.fds.empty()) {
    ASSIGN_OR_RETURN(const MemoryDescriptors memory, store_->leases().ClaimDescriptors(token, pid));
    std::vector<int> fds = {memory.arena.get()};
    for (const common::UniqueFd& plane : memory.data_planes) fds.push_back(plane.get());
    lease_.emplace(Lease{std::move(pending->channel), token});
    const absl::Status sent =
        lease_->channel.Send(TypeOf(DescriptorMessage::kWelcome), "", fds, kSendTimeout);
    if (!sent.ok()) ReadLease();
    return absl::OkStatus();
  }
  if (message.type == TypeOf(DescriptorMessage::kHandBack) && message.fds.size() >= 2) {
    MemoryDescriptors memory{.arena = std::move(message.fds[0])};
    memory.data_planes.assign(std::make_move_iterator(message.fds.begin() + 1),
                              std::make_move_iterator(message.fds.end()));
    RETURN_IF_ERROR(store_->leases().HandBack(token, pid, std::move(memory)));
    lease_.emplace(Lease{std::move(pending->channel), token});
    const absl::Status sent =
        lease_->channel.Send(TypeOf(DescriptorMessage::kWelcome), "", {}, kSendTimeout);
    if (!sent.ok()) ReadLease();
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a first message of type ", message.type, " with ",
                                                 message.fds.size(), " descriptors"));
}

void DescriptorServer::ReadLease() {
  const absl::StatusOr<common::FdMessage> message = lease_->channel.Receive(absl::ZeroDuration());
  if (absl::IsDeadlineExceeded(message.status())) return;
  if (message.ok() || absl::IsInvalidArgument(message.status())) {
    // A live worker that says what nobody expects: its memory stays valid.
    if (const auto suppressed = refusal_log_.Admit(common::SteadyNow())) {
      spdlog::warn("descriptor socket: ignored a message on the worker's lease ({} more left out)",
                   *suppressed);
    }
    return;
  }
  store_->leases().EndLease(lease_->token, "its connection ended");
  lease_.reset();
}

}  // namespace retroinfer::kvstore
