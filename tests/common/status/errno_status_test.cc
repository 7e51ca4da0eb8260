#include "common/status/errno_status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

namespace retroinfer::common {
namespace {

TEST(ErrnoStatusTest, KeepsWhatWasTriedAndTheErrnoValue) {
  const absl::Status status = ErrnoStatus(ENOENT, "open /no/such/file");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(status.message()),
            "open /no/such/file: No such file or directory (errno 2)");
}

TEST(ErrnoStatusTest, MapsResourceAndConnectionErrors) {
  EXPECT_EQ(ErrnoStatus(ENOSPC, "x").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus(ECONNREFUSED, "x").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrnoStatus(EACCES, "x").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ErrnoStatus(EIO, "x").code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace retroinfer::common
