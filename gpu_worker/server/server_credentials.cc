#include "gpu_worker/server/server_credentials.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr unsigned int kReloadSeconds = 10;

absl::Status RequireReadable(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return common::ErrnoStatus(errno, absl::StrCat("reading ", path));
  ::close(fd);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const ServerOptions& options) {
  const bool has_certificate = !options.tls_certificate_file.empty();
  const bool has_ca = !options.tls_client_ca_file.empty();
  if (has_certificate != !options.tls_key_file.empty() || (has_ca && !has_certificate)) {
    return absl::InvalidArgumentError(
        "TLS needs --tls-certificate and --tls-key together; --tls-client-ca needs both");
  }
  if (!has_certificate) return grpc::InsecureServerCredentials();
  RETURN_IF_ERROR(RequireReadable(options.tls_certificate_file));
  RETURN_IF_ERROR(RequireReadable(options.tls_key_file));
  if (has_ca) RETURN_IF_ERROR(RequireReadable(options.tls_client_ca_file));

  namespace tls = grpc::experimental;
  tls::TlsServerCredentialsOptions credentials(
      std::make_shared<tls::FileWatcherCertificateProvider>(
          options.tls_key_file, options.tls_certificate_file, options.tls_client_ca_file,
          kReloadSeconds));
  credentials.watch_identity_key_cert_pairs();
  if (has_ca) {
    credentials.watch_root_certs();
    credentials.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  } else {
    credentials.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  }
  return tls::TlsServerCredentials(credentials);
}

}  // namespace retroinfer
