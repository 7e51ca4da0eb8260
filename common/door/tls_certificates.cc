#include "common/door/tls_certificates.h"

#include <openssl/err.h>
#include <openssl/x509.h>

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/files/regular_file.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;

absl::Status SslError(const std::string& what) {
  char text[256] = "no reason given";
  if (const unsigned long error = ERR_peek_last_error(); error != 0) {
    ERR_error_string_n(error, text, sizeof(text));
  }
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", text));
}

int SelectHttp2(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* in,
                unsigned int in_size, void*) {
  static constexpr unsigned char kOurs[] = {2, 'h', '2'};
  unsigned char* selected = nullptr;
  if (SSL_select_next_proto(&selected, out_size, kOurs, sizeof(kOurs), in, in_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = selected;
  return SSL_TLSEXT_ERR_OK;
}

int SelectHttp11(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* in,
                 unsigned int in_size, void*) {
  static constexpr unsigned char kOurs[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  unsigned char* selected = nullptr;
  if (SSL_select_next_proto(&selected, out_size, kOurs, sizeof(kOurs), in, in_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;  // nothing else is spoken here, so the client may try
  }
  *out = selected;
  return SSL_TLSEXT_ERR_OK;
}

absl::Time ExpiryOf(SSL_CTX* context) {
  std::tm time{};
  const X509* const certificate = SSL_CTX_get0_certificate(context);
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &time) != 1) return absl::InfinitePast();
  return absl::FromTM(time, absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsCertificates>> TlsCertificates::Load(const TlsFiles& files,
                                                                       TlsProtocol protocol) {
  std::unique_ptr<TlsCertificates> certificates(new TlsCertificates(files, protocol));
  ASSIGN_OR_RETURN(const std::string texts, certificates->ReadAll());
  RETURN_IF_ERROR(certificates->Use());
  certificates->texts_ = texts;
  return certificates;
}

absl::StatusOr<std::string> TlsCertificates::ReadAll() const {
  std::string texts;
  for (const std::string& path : {files_.certificate, files_.key, files_.client_ca}) {
    if (path.empty()) continue;
    ASSIGN_OR_RETURN(const std::string text, ReadNamedFile(path, kFileBytesMax));
    absl::StrAppend(&texts, text.size(), ":", text);
  }
  return texts;
}

absl::Status TlsCertificates::Check(const TlsFiles& files) {
  const bool has_certificate = !files.certificate.empty();
  if (has_certificate != !files.key.empty() || (!files.client_ca.empty() && !has_certificate)) {
    return absl::InvalidArgumentError(
        "TLS needs --tls-certificate and --tls-key together; --tls-client-ca needs both");
  }
  return has_certificate ? Load(files).status() : absl::OkStatus();
}

absl::StatusOr<bool> TlsCertificates::Reload() {
  absl::StatusOr<std::string> texts = ReadAll();
  // An error that stays is told once.
  std::string seen = texts.ok() ? *texts : texts.status().ToString();
  if (seen == texts_) return false;
  texts_ = std::move(seen);
  RETURN_IF_ERROR(texts.status());
  RETURN_IF_ERROR(Use());
  return true;
}

absl::Status TlsCertificates::Use() {
  Context context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) return SslError("TLS");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                         SSL_OP_NO_TICKET | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(
      context.get(), protocol_ == TlsProtocol::kHttp2 ? SelectHttp2 : SelectHttp11, nullptr);
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context.get(), files_.certificate.c_str()) != 1) {
    return SslError(absl::StrCat(files_.certificate, " holds no certificate"));
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), files_.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return SslError(absl::StrCat(files_.key, " does not hold the certificate's key"));
  }
  if (!files_.client_ca.empty()) {
    STACK_OF(X509_NAME)* const names = SSL_load_client_CA_file(files_.client_ca.c_str());
    if (names == nullptr ||
        SSL_CTX_load_verify_file(context.get(), files_.client_ca.c_str()) != 1) {
      return SslError(absl::StrCat(files_.client_ca, " holds no certificate"));
    }
    SSL_CTX_set_client_CA_list(context.get(), names);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  const absl::Time expires = ExpiryOf(context.get());
  const absl::Time now = absl::Now();
  if (context_ != nullptr && expires <= now && expires_ > now) {
    return absl::InvalidArgumentError(
        absl::StrCat(files_.certificate, " has expired, the one in use has not"));
  }
  context_ = std::move(context);
  expires_ = expires;
  return absl::OkStatus();
}

}  // namespace retroinfer::common
