// Who calls: API keys, each of one tenant, and what each tenant may do.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/tenant/tenant.h"

namespace retroinfer::common {

// Compares digests of keys in constant time, so that neither the bytes nor the length of a key,
// nor which of several it is, can be learnt from response times.
//
// Threads: immutable; any thread.
class KeyRing {
 public:
  // No key is needed.
  KeyRing();
  // `key` empty: no key is needed. Whoever has it is the tenant without a name.
  explicit KeyRing(std::string_view key);
  // A file of tenants (docs/operate/tenants.md), TOML in ASCII but for lines that are comments:
  //
  //   [[tenant]]
  //   name = "search"                      # 1 to 64 of [A-Za-z0-9_.-]
  //   keys = ["..."]                       # or
  //   key_sha256 = ["64 hexadecimal digits"]
  //   weight = 2.0                         # (0, 1000]; this and all below may be left out
  //   highest_priority = 0
  //   max_requests = 64
  //   max_waiting_tokens = 2000000
  //   max_contexts = 100
  //
  // Returns: INVALID_ARGUMENT, with the line, for what is no such file: unknown names, two tenants
  //          of one name, a key of two tenants, none at all, over 4096 tenants or 16384 keys.
  static absl::StatusOr<KeyRing> Parse(std::string_view text);

  bool required() const { return !keys_.empty(); }
  // Whether keys say who calls.
  bool names_tenants() const { return names_tenants_; }
  const std::vector<std::shared_ptr<const Tenant>>& tenants() const { return tenants_; }

  // `authorization`: the value of the header, or metadata, of that name, empty if there is none.
  //
  // Returns: whose key it is, never null; UNAUTHENTICATED with reason API_KEY_REQUIRED unless it is
  //          "Bearer " and a key.
  absl::StatusOr<std::shared_ptr<const Tenant>> Find(std::string_view authorization) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Key {
    Digest digest;  // SHA-256
    size_t tenant;
  };
  static Digest DigestOf(std::string_view key);

  std::vector<std::shared_ptr<const Tenant>> tenants_;
  std::vector<Key> keys_;
  bool names_tenants_ = false;
};

// The ring of a running server, which may be replaced.
//
// Threads: any thread.
class KeyHolder {
 public:
  // `file` empty: the ring is that of `key` for ever.
  //
  // Returns: INVALID_ARGUMENT for both at once, for a file that cannot be read or has over 4 MiB,
  //          and as KeyRing::Parse. Messages name the file.
  static absl::StatusOr<std::unique_ptr<KeyHolder>> Open(const std::string& key,
                                                         const std::string& file);

  std::shared_ptr<const KeyRing> ring() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads the file again. An error leaves the ring as it was. Calls that were let in go on.
  absl::Status Reload() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  KeyHolder(std::string file, KeyRing ring);

  const std::string file_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const KeyRing> ring_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace retroinfer::common
