#include "common/door/api_key.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include "common/status/error_reason.h"

namespace retroinfer::common {
namespace {

constexpr std::string_view kScheme = "Bearer ";

}  // namespace

ApiKey::ApiKey(std::string_view key) : required_(!key.empty()), digest_(DigestOf(key)) {}

ApiKey::Digest ApiKey::DigestOf(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

absl::Status ApiKey::Check(std::string_view authorization) const {
  if (!required_) return absl::OkStatus();
  const bool has_scheme = authorization.substr(0, kScheme.size()) == kScheme;
  const Digest given = DigestOf(has_scheme ? authorization.substr(kScheme.size()) : "");
  if (CRYPTO_memcmp(given.data(), digest_.data(), digest_.size()) == 0) return absl::OkStatus();
  return WithReason(absl::UnauthenticatedError(has_scheme ? "the API key is wrong"
                                                          : "this server needs an API key: send "
                                                            "'authorization: Bearer <key>'"),
                    "API_KEY_REQUIRED");
}

}  // namespace retroinfer::common
