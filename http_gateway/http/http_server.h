// Listens for HTTP/1.1 connections and keeps them.
#pragma once

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "common/door/tls_certificates.h"
#include "common/log/log_rate_limiter.h"
#include "http_gateway/http/connection.h"

namespace retroinfer::gateway {

struct HttpServerOptions {
  std::vector<std::string> addresses;  // host:port, or unix: and a path
  common::TlsFiles tls;  // for TCP, if there is a certificate; unix sockets are always plain
  int connections_max = 4096;
  ConnectionLimits limits;
};

struct HttpServerStats {
  int64_t connections = 0;
  uint64_t connections_accepted = 0;
  uint64_t connections_refused = 0;  // there were connections_max, all being answered
  uint64_t slow_clients = 0;
  uint64_t stalled_requests = 0;
  absl::Time certificate_expires = absl::InfiniteFuture();  // without TLS: never
  uint64_t certificate_reloads_failed = 0;
};

// When there are connections_max, a new connection takes the place of the one that has waited for a
// request for longest, those that never sent any first; if all are being answered, or have not
// taken their answer yet, it is closed.
//
// Threads: the io_context's.
// Owns:    sockets and connections.
class HttpServer {
 public:
  // Returns: INVALID_ARGUMENT or UNAVAILABLE as common::Listen(), NOT_FOUND and others as
  //          TlsCertificates.
  // REQUIRES: `handler` and `io` outlive this; `io` runs on one thread.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                           RequestHandler* handler,
                                                           boost::asio::io_context& io);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // From now on each connection, new ones too, ends with its next answer. What is refused meanwhile
  // is the handler's matter.
  void StartDraining();
  // Whether there are requests, perhaps not whole ones, or answers that clients have not taken.
  bool is_busy() const;
  // Listens no more, ends answers and refuses the requests that are being read with `status`, and
  // closes the other connections. Clients need a while to take the errors: is_empty() tells.
  void Shutdown(const absl::Status& status);
  bool is_empty() const;
  // Reads the certificates now. New ones that are not good leave the old ones in use.
  void ReloadCertificates();

  // As given, with the port that was taken where port 0 was asked for.
  const std::vector<std::string>& addresses() const { return addresses_; }
  HttpServerStats stats() const;

 private:
  using Acceptor = boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol>;
  struct Listener {
    Acceptor acceptor;
    bool tls;
    std::string path;  // of a unix socket
  };

  HttpServer(const HttpServerOptions& options, RequestHandler* handler,
             boost::asio::io_context& io);
  absl::Status Listen();
  void StopListening();
  void Accept(Listener& listener);
  void LetIn(Socket socket, bool tls);
  bool MakeRoom();
  void Tick();

  const HttpServerOptions options_;
  const size_t connections_max_;  // of the options; fewer if there are too few descriptors
  boost::asio::io_context& io_;
  ConnectionContext context_;
  std::vector<std::string> addresses_;
  std::unique_ptr<common::TlsCertificates> certificates_;  // null: no TLS
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  bool draining_ = false;
  boost::asio::steady_timer timer_;
  absl::Time next_reload_;
  HttpServerStats counts_;
  common::LogRateLimiter accept_log_{absl::Seconds(10)};
};

}  // namespace retroinfer::gateway
