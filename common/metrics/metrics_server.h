// The HTTP server that Prometheus scrapes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::common {

// Answers GET /metrics, one request a connection. Connections that send or read slowly hinder
// nobody: one thread serves all without waiting for any, each has a few seconds in all, and when
// there are too many the oldest one makes room.
//
// Threads: its own; `render` runs on it.
// Owns:    sockets, a thread.
class MetricsServer {
 public:
  static constexpr size_t kConnectionsMax = 64;
  static constexpr absl::Duration kTimeout = absl::Seconds(10);

  // Listens on "host:port"; port 0 takes a free one.
  //
  // Returns: INVALID_ARGUMENT or UNAVAILABLE if the address is not valid or taken.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address,
                                                              std::function<std::string()> render);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const { return port_; }

 private:
  struct Connection {
    UniqueFd socket;
    absl::Time since;
    std::string request;
    std::string answer;  // what is left to be sent; not empty: the request is complete
    bool done = false;
  };

  explicit MetricsServer(std::function<std::string()> render) : render_(std::move(render)) {}
  void Run();
  void Accept(const UniqueFd& listener);
  void Serve(Connection* connection);
  std::string AnswerTo(const std::string& request) const;

  const std::function<std::string()> render_;
  int port_ = 0;
  std::vector<UniqueFd> listeners_;
  UniqueFd stop_;                        // readable: end
  std::vector<Connection> connections_;  // of the thread, oldest first
  std::thread thread_;
};

}  // namespace retroinfer::common
