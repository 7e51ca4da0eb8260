#include "kv_store_service/server/allocation_log.h"

#include <gtest/gtest.h>

namespace retroinfer::kvstore {
namespace {

TEST(AllocationLog, SaysHowFarItIsEveryTwoSeconds) {
  const absl::Time begin = absl::UnixEpoch();
  AllocationLog log(uint64_t{115} << 30, begin);
  EXPECT_FALSE(log.Due(0, begin).has_value());
  EXPECT_FALSE(log.Due(9, begin + absl::Milliseconds(1999)).has_value());
  EXPECT_EQ(log.Due(10, begin + absl::Seconds(2)), "allocating an arena of 115.00 GiB: 10 %");
  EXPECT_FALSE(log.Due(12, begin + absl::Seconds(3)).has_value());
  EXPECT_EQ(log.Due(21, begin + absl::Seconds(4.5)), "allocating an arena of 115.00 GiB: 21 %");
}

}  // namespace
}  // namespace retroinfer::kvstore
