// TLS of the worker's gRPC server.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "absl/status/statusor.h"
#include "gpu_worker/server/server_options.h"

namespace retroinfer {

// Returns plain-text credentials if `options` names no certificate, else TLS, or mutual TLS if it
// names a client CA. The files are read again every 10 seconds.
//
// Returns: INVALID_ARGUMENT if only one of certificate and key is named, or a client CA without
//          them; NOT_FOUND or PERMISSION_DENIED if a file cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const ServerOptions& options);

}  // namespace retroinfer
