#include "gpu_worker/assembly/default_prefill.h"

#include <gtest/gtest.h>

#include "tests/support/backends.h"

namespace retroinfer {
namespace {

TEST(DefaultPrefillTest, SparseNeedsABackendThatChoosesBlocks) {
  for (const test_support::BackendParam& param : test_support::AvailableBackends()) {
    const auto backend = param.create();
    const AttentionOps& ops = backend->ops->attention();
    EXPECT_TRUE(CheckDefaultPrefill({.prefill = PrefillKind::kExact}, ops).ok());
    const absl::Status sparse = CheckDefaultPrefill({.prefill = PrefillKind::kSparse}, ops);
    EXPECT_EQ(sparse.code(),
              ops.ChoosesBlocks() ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition)
        << param.name;
  }
}

}  // namespace
}  // namespace retroinfer
