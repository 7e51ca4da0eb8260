#include "http_gateway/http/http_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/clock/steady_now.h"
#include "common/door/listen_socket.h"
#include "common/status/status_macros.h"

namespace retroinfer::gateway {
namespace {

constexpr auto kTickTime = std::chrono::milliseconds(500);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr absl::Duration kReloadInterval = absl::Seconds(10);
// What the kernel may keep of an answer that a client does not read.
constexpr int kSendBufferBytes = 64 << 10;
// Descriptors for everything but clients' connections.
constexpr int64_t kOtherDescriptors = 128;

// How many connections there can be: without a descriptor a new one could not take the place of an
// old one.
int ConnectionsMax(int wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const auto descriptors = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT_MAX));
  const int64_t possible = std::max<int64_t>(1, descriptors - kOtherDescriptors);
  if (possible >= wanted) return wanted;
  spdlog::warn(
      "at most {} connections instead of {}: this process may have {} descriptors (ulimit -n)",
      possible, wanted, descriptors);
  return static_cast<int>(possible);
}

void ConfigureSocket(Socket& socket, int family) {
  const int bytes = kSendBufferBytes;
  ::setsockopt(socket.native_handle(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
  if (family == AF_UNIX) return;
  const int on = 1;
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(socket.native_handle(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

}  // namespace

HttpServer::HttpServer(const HttpServerOptions& options, RequestHandler* handler,
                       boost::asio::io_context& io)
    : options_(options),
      connections_max_(static_cast<size_t>(ConnectionsMax(options.connections_max))),
      io_(io),
      timer_(io),
      next_reload_(common::SteadyNow() + kReloadInterval) {
  context_.limits = options.limits;
  context_.handler = handler;
  context_.io = &io;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                              RequestHandler* handler,
                                                              boost::asio::io_context& io) {
  std::unique_ptr<HttpServer> server(new HttpServer(options, handler, io));
  RETURN_IF_ERROR(server->Listen());
  for (const auto& listener : server->listeners_) server->Accept(*listener);
  server->Tick();
  return server;
}

absl::Status HttpServer::Listen() {
  const bool has_certificate = !options_.tls.certificate.empty();
  if (has_certificate != !options_.tls.key.empty() ||
      (!options_.tls.client_ca.empty() && !has_certificate)) {
    return absl::InvalidArgumentError(
        "TLS needs --tls-certificate and --tls-key together; --tls-client-ca needs both");
  }
  if (has_certificate) {
    ASSIGN_OR_RETURN(certificates_,
                     common::TlsCertificates::Load(options_.tls, common::TlsProtocol::kHttp11));
  }
  for (const std::string& address : options_.addresses) {
    ASSIGN_OR_RETURN(common::ListenSockets sockets, common::Listen(address));
    const bool is_unix = absl::StartsWith(address, common::kUnixScheme);
    addresses_.push_back(sockets.address);
    for (const common::UniqueFd& fd : sockets.sockets) {
      sockaddr_storage name{};
      socklen_t size = sizeof(name);
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &size);
      auto listener = std::make_unique<Listener>(
          Listener{Acceptor(io_), has_certificate && !is_unix,
                   is_unix ? std::string(absl::StripPrefix(address, common::kUnixScheme)) : ""});
      listener->acceptor.assign(boost::asio::generic::stream_protocol(name.ss_family, 0),
                                ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
      listeners_.push_back(std::move(listener));
    }
  }
  return absl::OkStatus();
}

HttpServer::~HttpServer() {
  StopListening();
  for (const auto& connection : connections_) connection->Close();
}

void HttpServer::StopListening() {
  for (const auto& listener : listeners_) {
    boost::system::error_code ignored;
    listener->acceptor.close(ignored);
    if (!listener->path.empty()) ::unlink(listener->path.c_str());
    listener->path.clear();
  }
}

void HttpServer::StartDraining() {
  draining_ = true;
  for (const auto& connection : connections_) connection->StartDraining();
}

void HttpServer::Shutdown(const absl::Status& status) {
  draining_ = true;
  StopListening();
  for (const auto& connection : connections_) connection->Shutdown(status);
}

bool HttpServer::is_busy() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& connection) { return connection->is_busy(); });
}

bool HttpServer::is_empty() const {
  return std::all_of(connections_.begin(), connections_.end(),
                     [](const auto& connection) { return connection->closed(); });
}

void HttpServer::Accept(Listener& listener) {
  listener.acceptor.async_accept(
      [this, &listener](const boost::system::error_code& error, Socket socket) {
        if (error == boost::asio::error::operation_aborted) return;
        if (!listener.acceptor.is_open()) return;
        if (error) {  // no descriptors are left, perhaps
          if (const auto left_out = accept_log_.Admit(common::SteadyNow()); left_out.has_value()) {
            spdlog::warn("a connection could not be accepted: {} ({} times more before this)",
                         error.message(), *left_out);
          }
          auto pause = std::make_shared<boost::asio::steady_timer>(io_, kAcceptPause);
          pause->async_wait([this, &listener, pause](const boost::system::error_code& stopped) {
            if (!stopped && listener.acceptor.is_open()) Accept(listener);
          });
          return;
        }
        ConfigureSocket(socket, listener.path.empty() ? AF_INET : AF_UNIX);
        LetIn(std::move(socket), listener.tls);
        Accept(listener);
      });
}

void HttpServer::LetIn(Socket socket, bool tls) {
  ++counts_.connections_accepted;
  if (connections_.size() >= connections_max_ && !MakeRoom()) {
    ++counts_.connections_refused;
    return;
  }
  auto transport = tls ? Transport::Tls(std::move(socket), certificates_->context())
                       : Transport::Plain(std::move(socket));
  auto connection = std::make_shared<Connection>(std::move(transport), &context_);
  connections_.insert(connection);
  if (draining_) connection->StartDraining();
  connection->Start();
}

bool HttpServer::MakeRoom() {
  const auto age = [](const std::shared_ptr<Connection>& connection) {
    return std::make_pair(connection->had_requests(), connection->idle_since());
  };
  std::shared_ptr<Connection> oldest;
  for (auto it = connections_.begin(); it != connections_.end();) {
    const std::shared_ptr<Connection>& connection = *it;
    if (connection->closed()) {
      it = connections_.erase(it);
      continue;
    }
    if (!connection->is_answering() && (oldest == nullptr || age(connection) < age(oldest))) {
      oldest = connection;
    }
    ++it;
  }
  if (connections_.size() < connections_max_) return true;
  if (oldest == nullptr) return false;
  oldest->Close();
  connections_.erase(oldest);
  ++counts_.connections_refused;
  return true;
}

void HttpServer::ReloadCertificates() {
  next_reload_ = common::SteadyNow() + kReloadInterval;
  if (certificates_ == nullptr) return;
  const absl::StatusOr<bool> changed = certificates_->Reload();
  if (!changed.ok()) {
    ++counts_.certificate_reloads_failed;
    spdlog::error("the new certificates are not used: {}", std::string(changed.status().message()));
  } else if (*changed) {
    spdlog::info("new certificates, valid until {}", absl::FormatTime(certificates_->expires()));
  }
}

void HttpServer::Tick() {
  timer_.expires_after(kTickTime);
  timer_.async_wait([this](const boost::system::error_code& stopped) {
    if (stopped) return;
    const absl::Time now = common::SteadyNow();
    // A tick may cancel answers, which calls handlers; none of them adds or removes connections.
    for (auto it = connections_.begin(); it != connections_.end();) {
      const std::shared_ptr<Connection> connection = *it;
      connection->Tick(now);
      it = connection->closed() ? connections_.erase(it) : std::next(it);
    }
    if (now >= next_reload_) ReloadCertificates();
    Tick();
  });
}

HttpServerStats HttpServer::stats() const {
  HttpServerStats stats = counts_;
  stats.connections = static_cast<int64_t>(connections_.size());
  stats.slow_clients = context_.slow_clients;
  stats.stalled_requests = context_.stalled_requests;
  if (certificates_ != nullptr) stats.certificate_expires = certificates_->expires();
  return stats;
}

}  // namespace retroinfer::gateway
