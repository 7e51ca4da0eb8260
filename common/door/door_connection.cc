#include "common/door/door_connection.h"

#include <openssl/err.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "common/log/check.h"

namespace retroinfer::common {
namespace {

constexpr size_t kReadBytes = 16 << 10;    // also the most that TLS has in one record
constexpr size_t kToClientMax = 64 << 10;  // beyond it gRPC is not read
constexpr int kRounds = 4;                 // of one Pump(), so that others get their turn

ssize_t FromErrno(ssize_t result) {
  if (result > 0) return result;
  return result < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

}  // namespace

DoorConnection::DoorConnection(const Context* context, UniqueFd client, SSL_CTX* tls,
                               absl::Time now)
    : context_(context),
      client_(std::move(client)),
      client_state_(tls == nullptr ? Client::kOpen : Client::kHandshake),
      gate_(context->policy, context->budget, now),
      began_(now),
      idle_since_(now) {
  if (tls == nullptr) return;
  tls_ = SSL_new(tls);
  RI_CHECK(tls_ != nullptr && SSL_set_fd(tls_, client_.get()) == 1);
  SSL_set_accept_state(tls_);
}

DoorConnection::~DoorConnection() { SSL_free(tls_); }

void DoorConnection::OnClientEvent(bool readable, bool writable) {
  client_readable_ |= readable;
  client_writable_ |= writable;
}

void DoorConnection::OnServerEvent(bool readable, bool writable) {
  server_readable_ |= readable;
  server_writable_ |= writable;
}

bool DoorConnection::HandleTlsResult(int result) {
  const int error = SSL_get_error(tls_, result);
  ERR_clear_error();
  if (error == SSL_ERROR_WANT_READ) {
    client_readable_ = false;
    return true;
  }
  if (error == SSL_ERROR_WANT_WRITE) {
    client_writable_ = false;
    return true;
  }
  return false;
}

ssize_t DoorConnection::ReadClient(char* data, size_t size) {
  if (tls_ == nullptr || client_state_ == Client::kFarewell) {
    const ssize_t bytes = FromErrno(::recv(client_.get(), data, size, 0));
    if (bytes == 0) client_readable_ = false;
    return bytes;
  }
  const int bytes = SSL_read(tls_, data, static_cast<int>(size));
  if (bytes > 0) return bytes;
  return HandleTlsResult(bytes) ? 0 : -1;
}

ssize_t DoorConnection::WriteClient(std::string_view data) {
  if (tls_ == nullptr) {
    const ssize_t bytes = FromErrno(::send(client_.get(), data.data(), data.size(), MSG_NOSIGNAL));
    if (bytes == 0) client_writable_ = false;
    return bytes;
  }
  const int bytes = SSL_write(tls_, data.data(), static_cast<int>(data.size()));
  if (bytes > 0) return bytes;
  return HandleTlsResult(bytes) ? 0 : -1;
}

bool DoorConnection::Handshake(absl::Time now) {
  const int result = SSL_do_handshake(tls_);
  if (result == 1) {
    client_state_ = Client::kOpen;
    return true;
  }
  if (!HandleTlsResult(result)) Close(absl::InvalidArgumentError("no TLS"), now);
  return false;
}

void DoorConnection::LoseClient() {
  client_state_ = Client::kGone;
  client_.Reset();
  if (server_state_ == Server::kNone) server_state_ = Server::kGone;
  if (server_state_ == Server::kOpen) server_state_ = Server::kDraining;
}

void DoorConnection::LoseServer(absl::Time now) {
  server_state_ = Server::kGone;
  server_.Reset();
  if (client_state_ == Client::kFarewell || client_state_ == Client::kGone) return;
  client_state_ = Client::kFarewell;
  farewell_since_ = now;
}

void DoorConnection::OpenServer() {
  std::array<int, 2> pair;
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()) != 0) {
    return LoseClient();
  }
  server_.Reset(pair[0]);
  server_state_ = Server::kOpen;
  context_->watch_server(this);
  context_->hand_over(pair[1]);
}

bool DoorConnection::FlushToServer(absl::Time now) {
  if (to_server_.empty() || !server_.valid() || !server_writable_) return false;
  const ssize_t bytes =
      FromErrno(::send(server_.get(), to_server_.data(), to_server_.size(), MSG_NOSIGNAL));
  if (bytes > 0) to_server_.erase(0, static_cast<size_t>(bytes));
  if (bytes == 0) server_writable_ = false;
  if (bytes < 0) LoseServer(now);
  return bytes > 0;
}

bool DoorConnection::FlushToClient(absl::Time now) {
  gate_.TakeAnswers(&to_client_);
  if (to_client_.empty()) {
    unread_since_ = absl::InfiniteFuture();
    return false;
  }
  if (unread_since_ == absl::InfiniteFuture()) unread_since_ = now;
  if (!client_writable_) return false;
  const ssize_t bytes = WriteClient(to_client_);
  if (bytes < 0) {
    LoseClient();
    return false;
  }
  to_client_.erase(0, static_cast<size_t>(bytes));
  if (bytes > 0) unread_since_ = now;
  return bytes > 0;
}

bool DoorConnection::MoveFromClient(absl::Time now) {
  bool progress = false;
  const bool wanted = to_server_.size() < CallGate::kOutputMax && to_client_.size() < kToClientMax;
  if (wanted && client_readable_ && from_client_.empty() && now >= gate_.paused_until()) {
    from_client_.resize(kReadBytes);
    const ssize_t bytes = ReadClient(from_client_.data(), from_client_.size());
    from_client_.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
    if (bytes < 0) {
      LoseClient();
      return true;
    }
    progress = bytes > 0;
  }
  if (wanted) {
    const absl::StatusOr<size_t> taken = gate_.FromClient(from_client_, now, &to_server_);
    if (!taken.ok()) {
      Close(taken.status(), now);
      return true;
    }
    from_client_.erase(0, *taken);
    progress |= *taken > 0;
  }
  if (server_state_ == Server::kNone && gate_.greeted()) OpenServer();
  return FlushToServer(now) || progress;
}

bool DoorConnection::MoveFromServer(absl::Time now) {
  bool progress = false;
  if (server_.valid() && server_readable_ && to_client_.size() < kToClientMax) {
    std::array<char, kToClientMax> buffer;
    const ssize_t bytes =
        FromErrno(::recv(server_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT));
    if (bytes == 0) server_readable_ = false;
    if (bytes < 0) LoseServer(now);
    if (bytes > 0) {
      progress = true;
      const std::string_view read(buffer.data(), static_cast<size_t>(bytes));
      const absl::Status status = gate_.FromServer(read, now, &to_client_, &to_server_);
      if (!status.ok()) {
        Close(status, now);
        return true;
      }
    }
  }
  return FlushToClient(now) || progress;
}

bool DoorConnection::SayFarewell(absl::Time now) {
  const bool progress = FlushToClient(now);
  if (!to_client_.empty() || client_state_ == Client::kGone) return progress;
  if (!write_ended_) {
    write_ended_ = true;
    if (tls_ != nullptr && SSL_is_init_finished(tls_)) SSL_shutdown(tls_);
    ::shutdown(client_.get(), SHUT_WR);
  }
  // To close a socket with unread bytes would take the farewell back.
  std::array<char, kReadBytes> buffer;
  const ssize_t bytes = client_readable_ ? ReadClient(buffer.data(), buffer.size()) : 0;
  if (bytes < 0) LoseClient();
  return bytes > 0;
}

// Ends what is left of the client's calls.
bool DoorConnection::Drain(absl::Time now) {
  std::array<char, kToClientMax> buffer;
  std::string unread;
  bool progress = false;
  if (server_readable_) {
    const ssize_t bytes = FromErrno(::recv(server_.get(), buffer.data(), buffer.size(), 0));
    if (bytes == 0) server_readable_ = false;
    if (bytes < 0) {
      LoseServer(now);
      return false;
    }
    progress = bytes > 0;
    // Nobody is left to be told of too many lost calls.
    (void)gate_.FromServer(std::string_view(buffer.data(), static_cast<size_t>(bytes)), now,
                           &unread, &to_server_);
  }
  const bool over = gate_.Abandon(now, &to_server_);
  progress |= FlushToServer(now);
  if (over && to_server_.empty()) LoseServer(now);
  return progress;
}

bool DoorConnection::Pump(absl::Time now) {
  bool progress = true;
  for (int round = 0; progress && round < kRounds; ++round) {
    progress = false;
    if (client_state_ == Client::kHandshake) progress = Handshake(now);
    if (client_state_ == Client::kOpen) progress |= MoveFromClient(now);
    if (client_state_ == Client::kOpen) progress |= MoveFromServer(now);
    if (client_state_ == Client::kFarewell) progress |= SayFarewell(now);
    if (server_state_ == Server::kDraining) progress |= Drain(now);
  }
  if (gate_.open_calls() > gate_.health_watches() || client_state_ != Client::kOpen) {
    idle_since_ = absl::InfiniteFuture();
  } else if (idle_since_ == absl::InfiniteFuture()) {
    idle_since_ = now;
  }
  return progress && !done();
}

void DoorConnection::Tick(absl::Time now) {
  const Timeouts& timeouts = context_->timeouts;
  if (server_.valid()) {
    const GateBudget& budget = *context_->budget;
    const bool full = budget.open_calls * 4 > budget.limits.open_calls_max * 3;
    gate_.EndStalledCalls(now - (full ? timeouts.request_when_full : timeouts.request),
                          now - timeouts.cancelled, now, &to_server_);
  }
  if (client_state_ == Client::kFarewell && now - farewell_since_ > timeouts.farewell) {
    return LoseClient();
  }
  if (client_state_ == Client::kFarewell || client_state_ == Client::kGone) return;
  if (!gate_.greeted() && now - began_ > timeouts.greeting) {
    return Close(absl::DeadlineExceededError("no greeting"), now);
  }
  if (unread_since_ < now - timeouts.unread) {
    return Close(absl::DeadlineExceededError("nothing was read"), now);
  }
  // The client owes something only if nothing of it waits here.
  if (!from_client_.empty() || gate_.paused_until() > now) return;
  if (const auto since = gate_.waiting_since();
      since.has_value() && *since < now - timeouts.frame) {
    return Close(absl::DeadlineExceededError("the rest of a frame did not come"), now);
  }
}

void DoorConnection::Close(const absl::Status& why, absl::Time now) {
  if (client_state_ == Client::kFarewell || client_state_ == Client::kGone) return;
  error_ = why;
  if (client_state_ == Client::kOpen) gate_.GoAway(why, &to_client_);
  client_state_ = Client::kFarewell;
  farewell_since_ = now;
  idle_since_ = absl::InfiniteFuture();
  server_state_ = server_state_ == Server::kOpen ? Server::kDraining : Server::kGone;
}

}  // namespace retroinfer::common
