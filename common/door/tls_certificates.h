// Certificates of a TLS server that may change while it runs.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace retroinfer::common {

struct TlsFiles {
  std::string certificate;  // PEM, the whole chain
  std::string key;          // PEM
  std::string client_ca;    // PEM; with one, clients need a certificate that it signed
};

enum class TlsProtocol { kHttp2, kHttp11 };  // by its name in ALPN; clients must offer HTTP/2

// TLS 1.2 and 1.3, with what the files said when they were last good.
//
// Threads: one at a time.
class TlsCertificates {
 public:
  // Returns: NOT_FOUND or PERMISSION_DENIED for a file that cannot be read; INVALID_ARGUMENT for
  //          one that holds no certificate or key, or a key of another certificate.
  static absl::StatusOr<std::unique_ptr<TlsCertificates>> Load(
      const TlsFiles& files, TlsProtocol protocol = TlsProtocol::kHttp2);

  // Says what is wrong with the files, if they are given at all.
  //
  // Returns: as Load(); INVALID_ARGUMENT, with the flags, if some of them are missing.
  static absl::Status Check(const TlsFiles& files);

  // Reads the files again if they have changed. New ones that are not good, or have expired, leave
  // everything as it was; the same bad files are an error only once. Returns whether there are new
  // ones.
  absl::StatusOr<bool> Reload();

  // For connections made from now on.
  SSL_CTX* context() const { return context_.get(); }
  absl::Time expires() const { return expires_; }

 private:
  struct FreeContext {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  using Context = std::unique_ptr<SSL_CTX, FreeContext>;

  TlsCertificates(const TlsFiles& files, TlsProtocol protocol)
      : files_(files), protocol_(protocol) {}
  absl::StatusOr<std::string> ReadAll() const;
  // Reads the files as TLS needs them.
  absl::Status Use();

  const TlsFiles files_;
  const TlsProtocol protocol_;
  std::string texts_;  // of all files, as last read
  Context context_;
  absl::Time expires_;
};

}  // namespace retroinfer::common
