#include "common/metrics/metrics_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock/steady_now.h"
#include "common/door/listen_socket.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr size_t kRequestBytesMax = 8192;
constexpr std::string_view kEndOfRequest = "\r\n\r\n";

std::string Answer(std::string_view status, const std::string& type, const std::string& body,
                   bool with_body = true) {
  return absl::StrCat("HTTP/1.1 ", std::string(status), "\r\nContent-Type: ", type,
                      "\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n\r\n",
                      with_body ? body : "");
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& address, std::function<std::string()> render) {
  std::unique_ptr<MetricsServer> server(new MetricsServer(std::move(render)));
  if (absl::StartsWith(address, kUnixScheme)) {
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is no host:port"));
  }
  ASSIGN_OR_RETURN(ListenSockets sockets, Listen(address));
  server->listeners_ = std::move(sockets.sockets);
  const std::string port = sockets.address.substr(sockets.address.rfind(':') + 1);
  if (!absl::SimpleAtoi(port, &server->port_)) return absl::InternalError("no port");
  server->stop_.Reset(::eventfd(0, EFD_CLOEXEC));
  if (!server->stop_.valid()) return ErrnoStatus(errno, "eventfd");
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  return server;
}

MetricsServer::~MetricsServer() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void MetricsServer::Run() {
  constexpr int kTickMilliseconds = 500;
  for (;;) {
    std::vector<pollfd> entries = {{stop_.get(), POLLIN, 0}};
    for (const UniqueFd& listener : listeners_) entries.push_back({listener.get(), POLLIN, 0});
    for (const Connection& connection : connections_) {
      const short events = connection.answer.empty() ? POLLIN : POLLOUT;
      entries.push_back({connection.socket.get(), events, 0});
    }
    if (::poll(entries.data(), entries.size(), kTickMilliseconds) < 0) {
      absl::SleepFor(absl::Milliseconds(100));  // more entries than descriptors are allowed
    }
    if (entries[0].revents != 0) return;
    const absl::Time now = SteadyNow();
    for (size_t i = 0; i < connections_.size(); ++i) {
      if (entries[1 + listeners_.size() + i].revents != 0) Serve(&connections_[i]);
      connections_[i].done |= now - connections_[i].since > kTimeout;
    }
    const auto is_done = [](const Connection& connection) { return connection.done; };
    connections_.erase(std::remove_if(connections_.begin(), connections_.end(), is_done),
                       connections_.end());
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (entries[1 + i].revents != 0) Accept(listeners_[i]);
    }
  }
}

void MetricsServer::Accept(const UniqueFd& listener) {
  UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid() && (errno == EMFILE || errno == ENFILE)) {
    absl::SleepFor(absl::Milliseconds(100));  // descriptors may come back
  }
  if (!socket.valid()) return;
  if (connections_.size() >= kConnectionsMax) connections_.erase(connections_.begin());
  connections_.push_back({std::move(socket), SteadyNow(), "", ""});
  Serve(&connections_.back());
}

void MetricsServer::Serve(Connection* connection) {
  const int fd = connection->socket.get();
  std::array<char, 4096> buffer;
  while (connection->answer.empty()) {
    const ssize_t bytes = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (bytes < 0 && errno == EAGAIN) return;
    connection->done = bytes <= 0;
    if (connection->done) return;
    std::string& request = connection->request;
    request.append(buffer.data(), static_cast<size_t>(bytes));
    if (request.find(kEndOfRequest) != std::string::npos) {
      connection->answer = AnswerTo(request);
    } else if (request.size() > kRequestBytesMax) {
      connection->answer = Answer("431 Request Header Fields Too Large", "text/plain", "");
    }
  }
  const std::string& answer = connection->answer;
  const ssize_t bytes = ::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
  if (bytes < 0 && errno == EAGAIN) return;
  connection->done = bytes < 0 || static_cast<size_t>(bytes) == answer.size();
  if (!connection->done) connection->answer.erase(0, static_cast<size_t>(bytes));
}

std::string MetricsServer::AnswerTo(const std::string& request) const {
  const std::string line = request.substr(0, request.find("\r\n"));
  const bool get = absl::StartsWith(line, "GET ");
  const bool head = absl::StartsWith(line, "HEAD ");
  if (!get && !head) return Answer("405 Method Not Allowed", "text/plain", "");
  const size_t begin = line.find(' ') + 1;
  const std::string path = line.substr(begin, line.find_first_of(" ?", begin) - begin);
  if (path != "/metrics") return Answer("404 Not Found", "text/plain", "see /metrics\n", get);
  return Answer("200 OK", "text/plain; version=0.0.4; charset=utf-8", render_(), get);
}

}  // namespace retroinfer::common
