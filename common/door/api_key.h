// Checks the API key that a call carries.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace retroinfer::common {

// Compares digests of keys in constant time, so that neither the bytes nor the length of the key
// can be learnt from response times.
//
// Threads: immutable; any thread.
class ApiKey {
 public:
  // `key` empty: no key is needed.
  explicit ApiKey(std::string_view key);

  bool required() const { return required_; }

  // `authorization`: the value of the header, or metadata, of that name, empty if there is none.
  //
  // Returns: UNAUTHENTICATED with reason API_KEY_REQUIRED unless it is "Bearer " and the key.
  absl::Status Check(std::string_view authorization) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  static Digest DigestOf(std::string_view key);

  const bool required_;
  const Digest digest_;  // SHA-256
};

}  // namespace retroinfer::common
