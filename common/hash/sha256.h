// SHA-256 (FIPS 180-4), by OpenSSL.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace retroinfer::common {

// A digest, ordered by its bytes.
struct Hash256 {
  std::array<uint8_t, 32> bytes{};

  // Returns 64 lower-case hexadecimal digits.
  std::string ToHex() const;

  // Returns INVALID_ARGUMENT unless `hex` has 64 hexadecimal digits.
  static absl::StatusOr<Hash256> FromHex(std::string_view hex);

  // Returns INVALID_ARGUMENT unless `raw` has 32 bytes.
  static absl::StatusOr<Hash256> FromBytes(std::string_view raw);

  std::string_view view() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  friend auto operator<=>(const Hash256&, const Hash256&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Hash256& hash) {
    uint64_t word;  // the bytes are uniform already
    std::memcpy(&word, hash.bytes.data(), sizeof(word));
    return H::combine(std::move(state), word);
  }
};

// Hashes a sequence of fields. Numbers count as little-endian bytes of their full width.
//
// Threads: one at a time.
class Sha256 {
 public:
  // `domain` keeps hashes of different things apart; it is hashed first, with its length.
  explicit Sha256(std::string_view domain);
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  Sha256& Add(std::string_view bytes);
  Sha256& Add(const Hash256& hash);
  Sha256& AddU32(uint32_t value);
  Sha256& AddU64(uint64_t value);
  Sha256& AddI32s(std::span<const int32_t> values);

  // Returns the digest.
  //
  // REQUIRES: called once; nothing is added afterwards.
  Hash256 Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace retroinfer::common
