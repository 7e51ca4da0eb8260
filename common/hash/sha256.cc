#include "common/hash/sha256.h"

#include <openssl/evp.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log/check.h"

namespace retroinfer::common {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

template <typename T>
std::string_view LittleEndian(T value, char (&buffer)[sizeof(T)]) {
  for (size_t i = 0; i < sizeof(T); ++i) buffer[i] = static_cast<char>(value >> (8 * i));
  return {buffer, sizeof(T)};
}

}  // namespace

std::string Hash256::ToHex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(64);
  for (uint8_t byte : bytes) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}

absl::StatusOr<Hash256> Hash256::FromHex(std::string_view hex) {
  Hash256 hash;
  if (hex.size() != 2 * hash.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a hash has 64 hexadecimal digits, this one has ", hex.size()));
  }
  for (size_t i = 0; i < hash.bytes.size(); ++i) {
    const int high = HexDigit(hex[2 * i]);
    const int low = HexDigit(hex[2 * i + 1]);
    if (high < 0 || low < 0) {
      return absl::InvalidArgumentError("a hash has only the digits 0-9 and a-f");
    }
    hash.bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return hash;
}

absl::StatusOr<Hash256> Hash256::FromBytes(std::string_view raw) {
  Hash256 hash;
  if (raw.size() != hash.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a hash has 32 bytes, this one has ", raw.size()));
  }
  std::memcpy(hash.bytes.data(), raw.data(), raw.size());
  return hash;
}

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256(std::string_view domain) : context_(std::make_unique<Context>()) {
  RI_CHECK(context_->evp != nullptr);
  RI_CHECK(EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1);
  AddU64(domain.size());
  Add(domain);
}

Sha256::~Sha256() = default;

Sha256& Sha256::Add(std::string_view bytes) {
  RI_CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1);
  return *this;
}

Sha256& Sha256::Add(const Hash256& hash) { return Add(hash.view()); }

Sha256& Sha256::AddU32(uint32_t value) {
  char buffer[sizeof(value)];
  return Add(LittleEndian(value, buffer));
}

Sha256& Sha256::AddU64(uint64_t value) {
  char buffer[sizeof(value)];
  return Add(LittleEndian(value, buffer));
}

Sha256& Sha256::AddI32s(std::span<const int32_t> values) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  return Add({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

Hash256 Sha256::Finish() {
  Hash256 hash;
  unsigned size = 0;
  RI_CHECK(EVP_DigestFinal_ex(context_->evp, hash.bytes.data(), &size) == 1);
  RI_CHECK(size == hash.bytes.size());
  return hash;
}

}  // namespace retroinfer::common
