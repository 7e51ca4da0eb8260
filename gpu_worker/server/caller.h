// Who makes a call, and what belongs to that one alone.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/door/key_ring.h"

namespace retroinfer {

using Caller = std::shared_ptr<const common::Tenant>;  // never null

// Returns whose key the call carries; UNAUTHENTICATED, API_KEY_REQUIRED.
absl::StatusOr<Caller> CallerOf(const common::KeyHolder& keys,
                                const grpc::ServerContextBase& context);

// Returns whom a request that names `tenant` is for: the caller, if keys say who that is, else the
// tenant of that name without limits.
//
// Returns: PERMISSION_DENIED, TENANT_NOT_ALLOWED, for another tenant than the key's;
//          INVALID_ARGUMENT, INVALID_REQUEST, for a name over 64 bytes.
absl::StatusOr<Caller> TenantOf(const Caller& caller, const std::string& tenant);

// What tenants with keys of their own share with nobody, whatever salts and ids they choose: cached
// segments and contexts by the salt, requests by their id. Without such keys both stay as they are.
std::string SaltOf(const common::Tenant& caller, std::string_view cache_salt);
std::string ScopedRequestId(const common::Tenant& caller, std::string_view request_id);

}  // namespace retroinfer
