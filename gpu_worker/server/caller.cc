#include "gpu_worker/server/caller.h"

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace retroinfer {
namespace {

constexpr size_t kNameBytesMax = 64;

}  // namespace

absl::StatusOr<Caller> CallerOf(const common::KeyHolder& keys,
                                const grpc::ServerContextBase& context) {
  const auto found = context.client_metadata().find("authorization");
  if (found == context.client_metadata().end()) return keys.ring()->Find("");
  return keys.ring()->Find({found->second.data(), found->second.size()});
}

absl::StatusOr<Caller> TenantOf(const Caller& caller, const std::string& tenant) {
  if (tenant.empty() || tenant == caller->name) return caller;
  if (!caller->name.empty()) {
    return common::WithReason(
        absl::PermissionDeniedError(absl::StrCat("the API key is that of tenant ", caller->name,
                                                 ": leave `tenant` out, or say that name")),
        "TENANT_NOT_ALLOWED");
  }
  if (tenant.size() > kNameBytesMax) {
    return common::WithReason(
        absl::InvalidArgumentError(absl::StrCat("tenant has ", tenant.size(), " bytes, at most ",
                                                kNameBytesMax, " are allowed")),
        "INVALID_REQUEST");
  }
  common::Tenant named = *caller;
  named.name = tenant;
  return std::make_shared<const common::Tenant>(std::move(named));
}

std::string SaltOf(const common::Tenant& caller, std::string_view cache_salt) {
  if (caller.name.empty()) return std::string(cache_salt);
  // Names have no line ends, so no two tenants can meet.
  return absl::StrCat("tenant\n", caller.name, "\n", std::string(cache_salt));
}

std::string ScopedRequestId(const common::Tenant& caller, std::string_view request_id) {
  if (caller.name.empty()) return std::string(request_id);
  return absl::StrCat(caller.name, ":", std::string(request_id));
}

}  // namespace retroinfer
