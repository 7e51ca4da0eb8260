// How the commands reach a gpu_worker.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/config/settings.h"
#include "retroinfer/generation/v1/contexts.grpc.pb.h"
#include "retroinfer/generation/v1/generation.grpc.pb.h"

namespace retroinfer::client {

struct ConnectionOptions {
  std::string address = "127.0.0.1:50051";  // host:port, or unix: and a path
  std::string api_key_file;                 // empty: no key
  std::string tls_ca_file;                  // turns TLS on; PEM
  std::string tls_certificate_file;         // of the client, for mutual TLS
  std::string tls_key_file;
  std::string tls_server_name;   // that the certificate must have; empty: the host of the address
  std::string context_affinity;  // tells balancers what calls are about; empty: the prompt does
  int retries = 2;               // of a generation that an unavailable server has not begun
};

// Adds --address, --api-key-file and the options of AddTlsOptions().
void AddConnectionOptions(common::Settings* settings, ConnectionOptions* options);

// Adds --context-affinity.
void AddContextAffinityOption(common::Settings* settings, ConnectionOptions* options);

// Adds --context-affinity and --retries.
void AddFleetOptions(common::Settings* settings, ConnectionOptions* options);

// Adds --tls-ca, --tls-certificate, --tls-key and --tls-server-name.
void AddTlsOptions(common::Settings* settings, ConnectionOptions* options);

// Returns a channel that does not connect yet. The API key is not looked at.
//
// Returns: NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT if a file cannot be used.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const ConnectionOptions& options,
                                                           grpc::ChannelArguments arguments);

// Threads: immutable; any thread.
class Connection {
 public:
  // Reads the files; does not connect yet.
  //
  // Returns: NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT if a file cannot be used.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const ConnectionOptions& options);

  generation::v1::GenerationService::Stub& stub() const { return *stub_; }
  generation::v1::ContextService::Stub& contexts() const { return *contexts_; }
  const std::string& address() const { return address_; }
  // Adds the API key, and the name of what the call is about: --context-affinity, or else
  // `affinity` if that is not empty. To be called on the context of each call.
  void Prepare(grpc::ClientContext* context, const std::string& affinity = "") const;
  int retries() const { return retries_; }
  // Whether something accepted the connection when it was last tried.
  bool IsReachable() const;
  // Returns `status` as people want to read it: what failed, where, and what to do.
  std::string Explain(const grpc::Status& status) const;

 private:
  Connection(const ConnectionOptions& options, std::string api_key,
             std::shared_ptr<grpc::Channel> channel);

  const std::string address_;
  const std::string context_affinity_;
  const int retries_;
  const std::string api_key_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<generation::v1::GenerationService::Stub> stub_;
  const std::unique_ptr<generation::v1::ContextService::Stub> contexts_;
};

// Reads all of a file, or of a pipe to its end.
//
// Returns: RESOURCE_EXHAUSTED if there are more than 64 MiB, as in a device that never ends: no
//          server takes that much text at once; FAILED_PRECONDITION for a FIFO that nobody writes
//          to.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

}  // namespace retroinfer::client
