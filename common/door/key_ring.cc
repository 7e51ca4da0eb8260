#include "common/door/key_ring.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/files/regular_file.h"
#include "common/files/toml_text.h"
#include "common/hash/hex_digits.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr std::string_view kScheme = "Bearer ";
constexpr size_t kFileBytesMax = 4 << 20;
constexpr size_t kTenantsMax = 4096;
constexpr size_t kKeysMax = 16384;
constexpr size_t kNameBytesMax = 64;
constexpr size_t kKeyBytesMax = 4096;

absl::Status ErrorAt(const toml::source_region& where, std::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", static_cast<int64_t>(where.begin.line), ": ", std::string(message)));
}

absl::Status ErrorAt(const toml::node& node, std::string_view message) {
  return ErrorAt(node.source(), message);
}

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-';
         });
}

absl::Status ReadWhole(const toml::node& value, std::string_view name, int64_t least, int64_t most,
                       int64_t* out) {
  const std::optional<int64_t> number = value.value_exact<int64_t>();
  if (!number.has_value() || *number < least || *number > most) {
    return ErrorAt(value, absl::StrCat(std::string(name), " must be a whole number from ", least,
                                       " to ", most));
  }
  *out = *number;
  return absl::OkStatus();
}

absl::Status ReadWeight(const toml::node& value, double* out) {
  const std::optional<double> weight = value.value<double>();
  if (!value.is_number() || !weight.has_value() || !(*weight > 0) || *weight > 1000) {
    return ErrorAt(value, "weight must be a number above 0, at most 1000");
  }
  *out = *weight;
  return absl::OkStatus();
}

// A list of strings.
absl::StatusOr<std::vector<std::string>> ReadStrings(const toml::node& value,
                                                     std::string_view name) {
  std::vector<std::string> strings;
  const toml::array* const list = value.as_array();
  if (list == nullptr)
    return ErrorAt(value, absl::StrCat(std::string(name), " must be a list of strings"));
  for (const toml::node& entry : *list) {
    const std::optional<std::string> text = entry.value_exact<std::string>();
    if (!text.has_value() || text->empty() || text->size() > kKeyBytesMax) {
      return ErrorAt(entry,
                     absl::StrCat(std::string(name), " must be a list of strings, each of 1 to ",
                                  kKeyBytesMax, " bytes"));
    }
    strings.push_back(*text);
  }
  return strings;
}

}  // namespace

KeyRing::KeyRing() : KeyRing(std::string_view()) {}

KeyRing::KeyRing(std::string_view key) {
  tenants_.push_back(std::make_shared<const Tenant>());
  if (!key.empty()) keys_.push_back({DigestOf(key), 0});
}

KeyRing::Digest KeyRing::DigestOf(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

absl::StatusOr<std::shared_ptr<const Tenant>> KeyRing::Find(std::string_view authorization) const {
  if (!required()) return tenants_.front();
  const bool has_scheme = authorization.substr(0, kScheme.size()) == kScheme;
  const Digest given = DigestOf(has_scheme ? authorization.substr(kScheme.size()) : "");
  const Key* found = nullptr;
  for (const Key& key : keys_) {
    if (CRYPTO_memcmp(given.data(), key.digest.data(), given.size()) == 0) found = &key;
  }
  if (found != nullptr && has_scheme) return tenants_[found->tenant];
  return WithReason(absl::UnauthenticatedError(has_scheme ? "the API key is wrong"
                                                          : "this server needs an API key: send "
                                                            "'authorization: Bearer <key>'"),
                    "API_KEY_REQUIRED");
}

namespace {

struct TenantEntry {
  Tenant tenant;
  std::vector<std::string> keys;
  std::vector<std::string> digests;  // 32 bytes each
};

absl::Status ReadDigests(const toml::node& value, std::vector<std::string>* digests) {
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, ReadStrings(value, "key_sha256"));
  for (const std::string& text : texts) {
    std::optional<std::string> digest = BytesOfHexDigits(text);
    if (!digest.has_value() || digest->size() != 32) {
      return ErrorAt(value, "key_sha256 must hold 64 hexadecimal digits for each key");
    }
    digests->push_back(*std::move(digest));
  }
  return absl::OkStatus();
}

absl::Status ReadField(std::string_view name, const toml::node& value, TenantEntry* entry) {
  Tenant& tenant = entry->tenant;
  constexpr int64_t kMost = Tenant::kNoLimit;
  if (name == "name") {
    tenant.name = value.value_exact<std::string>().value_or("");
    if (IsName(tenant.name)) return absl::OkStatus();
    return ErrorAt(
        value, absl::StrCat("name must be 1 to ", kNameBytesMax, " characters of [A-Za-z0-9_.-]"));
  }
  if (name == "keys") {
    ASSIGN_OR_RETURN(entry->keys, ReadStrings(value, name));
    return absl::OkStatus();
  }
  if (name == "key_sha256") return ReadDigests(value, &entry->digests);
  if (name == "weight") return ReadWeight(value, &tenant.weight);
  if (name == "highest_priority") {
    int64_t priority = 0;
    RETURN_IF_ERROR(ReadWhole(value, name, INT32_MIN, INT32_MAX, &priority));
    tenant.highest_priority = static_cast<int32_t>(priority);
    return absl::OkStatus();
  }
  if (name == "max_requests") return ReadWhole(value, name, 0, kMost, &tenant.max_requests);
  if (name == "max_waiting_tokens") {
    return ReadWhole(value, name, 0, kMost, &tenant.max_waiting_tokens);
  }
  if (name == "max_contexts") return ReadWhole(value, name, 0, kMost, &tenant.max_contexts);
  return ErrorAt(value, absl::StrCat("'", std::string(name),
                                     "' is unknown; there are name, keys, key_sha256, weight, "
                                     "highest_priority, max_requests, max_waiting_tokens and "
                                     "max_contexts"));
}

absl::StatusOr<TenantEntry> ReadTenant(const toml::node& node) {
  const toml::table* const table = node.as_table();
  if (table == nullptr) return ErrorAt(node, "each tenant must be a table: [[tenant]]");
  TenantEntry entry;
  for (const auto& [name, value] : *table) RETURN_IF_ERROR(ReadField(name.str(), value, &entry));
  if (entry.tenant.name.empty()) return ErrorAt(node, "the tenant has no name");
  if (entry.keys.empty() && entry.digests.empty()) {
    return ErrorAt(node, absl::StrCat("tenant ", entry.tenant.name,
                                      " has no key: give it keys or key_sha256"));
  }
  return entry;
}

}  // namespace

absl::StatusOr<KeyRing> KeyRing::Parse(std::string_view text) {
  RETURN_IF_ERROR(CheckTomlCharacters(text));
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    return ErrorAt(parsed.error().source(), parsed.error().description());
  }
  KeyRing ring;
  ring.tenants_.clear();
  ring.names_tenants_ = true;
  std::set<std::string> names;
  std::set<Digest> digests;
  for (const auto& [name, value] : parsed.table()) {
    const toml::array* const list = value.as_array();
    if (name.str() != "tenant" || list == nullptr) {
      return ErrorAt(value, absl::StrCat("'", std::string(name.str()),
                                         "' is unknown; the file is a list of tables [[tenant]]"));
    }
    for (const toml::node& node : *list) {
      ASSIGN_OR_RETURN(const TenantEntry entry, ReadTenant(node));
      if (!names.insert(entry.tenant.name).second) {
        return ErrorAt(node, absl::StrCat("there are two tenants ", entry.tenant.name));
      }
      const auto add = [&](const Digest& digest) {
        ring.keys_.push_back({digest, ring.tenants_.size()});
        return digests.insert(digest).second;
      };
      bool is_new = true;
      for (const std::string& key : entry.keys) is_new &= add(DigestOf(key));
      for (const std::string& bytes : entry.digests) {
        Digest digest;
        std::copy(bytes.begin(), bytes.end(), digest.begin());
        is_new &= add(digest);
      }
      if (!is_new) {
        return ErrorAt(node, absl::StrCat("a key of tenant ", entry.tenant.name,
                                          " stands here twice, or is another tenant's, too"));
      }
      ring.tenants_.push_back(std::make_shared<const Tenant>(entry.tenant));
    }
  }
  if (ring.keys_.empty()) {
    return absl::InvalidArgumentError("there is no tenant: add a table [[tenant]]");
  }
  if (ring.tenants_.size() > kTenantsMax || ring.keys_.size() > kKeysMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are ", ring.tenants_.size(), " tenants with ", ring.keys_.size(),
                     " keys, at most ", kTenantsMax, " with ", kKeysMax, " are possible"));
  }
  return ring;
}

namespace {

absl::StatusOr<KeyRing> ReadRing(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadNamedFile(path, kFileBytesMax);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read it: ", text.status().message()));
  }
  absl::StatusOr<KeyRing> ring = KeyRing::Parse(*text);
  if (ring.ok()) return ring;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", ring.status().message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<KeyHolder>> KeyHolder::Open(const std::string& key,
                                                           const std::string& file) {
  if (file.empty()) return std::unique_ptr<KeyHolder>(new KeyHolder("", KeyRing(key)));
  if (!key.empty()) {
    return absl::InvalidArgumentError(
        "there is one API key for everybody and a file of tenants with keys of their own: leave "
        "one of them out");
  }
  ASSIGN_OR_RETURN(KeyRing ring, ReadRing(file));
  return std::unique_ptr<KeyHolder>(new KeyHolder(file, std::move(ring)));
}

KeyHolder::KeyHolder(std::string file, KeyRing ring)
    : file_(std::move(file)), ring_(std::make_shared<const KeyRing>(std::move(ring))) {}

std::shared_ptr<const KeyRing> KeyHolder::ring() const {
  absl::MutexLock lock(&mutex_);
  return ring_;
}

absl::Status KeyHolder::Reload() {
  if (file_.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(KeyRing ring, ReadRing(file_));
  auto next = std::make_shared<const KeyRing>(std::move(ring));
  absl::MutexLock lock(&mutex_);
  ring_ = std::move(next);
  return absl::OkStatus();
}

}  // namespace retroinfer::common
