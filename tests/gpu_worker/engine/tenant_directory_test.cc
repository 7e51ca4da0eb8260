#include "gpu_worker/engine/tenant_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

common::Tenant Named(std::string name, double weight = 1) {
  return {.name = std::move(name), .weight = weight};
}

TEST(TenantDirectoryTest, ATenantKeepsItsNumber) {
  TenantDirectory tenants;
  EXPECT_EQ(tenants.Acquire(Named("")), 0u);
  const uint32_t a = tenants.Acquire(Named("a", 2));
  const uint32_t b = tenants.Acquire(Named("b", 3));
  EXPECT_EQ(tenants.Acquire(Named("a", 4)), a);
  EXPECT_THAT(tenants.weights(), ElementsAre(1, 4, 3)) << "the weight that was told last";
  tenants.Release(a);
  tenants.Release(a);
  tenants.Release(b);
  EXPECT_EQ(tenants.Acquire(Named("a")), a) << "remembered, with what it has had";
  EXPECT_THAT(tenants.TakeNew(), IsEmpty());
}

TEST(TenantDirectoryTest, AnyNumberOfNamesNeedsFewNumbers) {
  TenantDirectory tenants;
  const uint32_t busy = tenants.Acquire(Named("busy"));
  for (int i = 0; i < 10000; ++i) tenants.Release(tenants.Acquire(Named(absl::StrCat("t", i))));
  EXPECT_EQ(tenants.weights().size(), TenantDirectory::kRemembered);
  EXPECT_EQ(tenants.Acquire(Named("busy")), busy);
  EXPECT_EQ(tenants.Acquire(Named("")), 0u);
  EXPECT_FALSE(tenants.TakeNew().empty());
  const uint32_t number = tenants.Acquire(Named("one more"));
  EXPECT_THAT(tenants.TakeNew(), ElementsAre(number)) << "the scheduler must forget the other one";
  EXPECT_THAT(tenants.TakeNew(), IsEmpty());
}

TEST(TenantDirectoryTest, ManyTenantsAtATimeAllHaveTheirOwn) {
  TenantDirectory tenants;
  std::vector<uint32_t> numbers;
  for (int i = 0; i < 1000; ++i) numbers.push_back(tenants.Acquire(Named(absl::StrCat("t", i))));
  std::sort(numbers.begin(), numbers.end());
  EXPECT_EQ(std::unique(numbers.begin(), numbers.end()), numbers.end());
}

}  // namespace
}  // namespace retroinfer
