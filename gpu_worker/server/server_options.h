// Settings of the worker's gRPC server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/door/key_ring.h"

namespace retroinfer {

struct ServerOptions {
  // "host:port", or "unix:" and an absolute path. Port 0 takes a free one.
  std::vector<std::string> addresses = {"127.0.0.1:50051"};

  int max_message_bytes = 64 << 20;   // a prompt of a million tokens is 4 to 5 MB
  int max_concurrent_streams = 1024;  // calls on one connection; more wait in the client
  int max_connections = 1024;
  int max_open_calls = 4096;                  // of all connections; more get RESOURCE_EXHAUSTED
  size_t grpc_memory_bytes = 1 << 30;         // that gRPC may hold for all connections
  size_t max_pending_bytes = 4 << 20;         // of one Generate call that its client has not read
  size_t max_pending_bytes_total = 64 << 20;  // of all of them; then those with most of it end
  int admission_threads = 2;                  // tokenize and submit

  // PEM files, read again when they change. Without a certificate the server speaks plain text.
  // With a client CA, clients need a certificate that it signed. Unix sockets are always plain: the
  // mode of their folder says who may connect.
  std::string tls_certificate_file;
  std::string tls_key_file;
  std::string tls_client_ca_file;

  // Keys that every RPC but health needs as `authorization: Bearer <key>`, and whose they are; none
  // is needed by default.
  std::shared_ptr<common::KeyHolder> keys = *common::KeyHolder::Open("", "");

  absl::Duration statistics_interval = absl::Seconds(10);  // between lines in the log
  std::string version = "unknown";                         // of the program
  std::string revision = "unknown";                        // git commit of its build
};

}  // namespace retroinfer
