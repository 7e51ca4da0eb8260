#include "gpu_worker/server/caller.h"

#include <gtest/gtest.h>

#include <set>

#include "common/status/error_reason.h"

namespace retroinfer {
namespace {

Caller Named(std::string name) {
  return std::make_shared<const common::Tenant>(common::Tenant{.name = std::move(name)});
}

TEST(CallerTest, ATenantWithAKeySpeaksForItselfAlone) {
  const Caller acme = Named("acme");
  EXPECT_EQ(*TenantOf(acme, ""), acme);
  EXPECT_EQ(*TenantOf(acme, "acme"), acme);
  const absl::Status status = TenantOf(acme, "other").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(common::ReasonOf(status).reason, "TENANT_NOT_ALLOWED");
}

TEST(CallerTest, AnybodyMayNameATenantWhereKeysDoNot) {
  const Caller anybody = Named("");
  EXPECT_EQ(*TenantOf(anybody, ""), anybody);
  EXPECT_EQ((*TenantOf(anybody, "team"))->name, "team");
}

TEST(CallerTest, TenantsWithKeysShareNothingWhateverTheyChoose) {
  std::set<std::string> salts, ids;
  for (const char* name : {"", "a", "a.b", "b"}) {
    for (const char* word : {"", "b", "a:b", "tenant\na\n", "\nb"}) {
      salts.insert(SaltOf(*Named(name), word));
      ids.insert(ScopedRequestId(*Named(name), word));
    }
  }
  // A salt without a name may spell a tenant's; but names are those of all callers, or of none.
  EXPECT_EQ(salts.size(), 20u - 1);
  EXPECT_EQ(SaltOf(*Named(""), "s"), "s");
  EXPECT_EQ(ScopedRequestId(*Named(""), "r"), "r");
}

}  // namespace
}  // namespace retroinfer
