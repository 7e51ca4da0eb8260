#include "kv_store_service/persistence/rocksdb_status.h"

#include <gtest/gtest.h>
#include <rocksdb/status.h>

namespace retroinfer::kvstore {
namespace {

TEST(RocksDbStatusTest, TranslatesEachKind) {
  using rocksdb::Status;
  const auto code = [](const Status& status) { return RocksDbStatus(status, "x").code(); };
  EXPECT_EQ(code(Status::OK()), absl::StatusCode::kOk);
  EXPECT_EQ(code(Status::NoSpace()), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(Status::NotFound("")), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(Status::Corruption("")), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code(Status::PathNotFound("")), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code(Status::Busy()), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code(Status::IOError("")), absl::StatusCode::kInternal);
}

TEST(RocksDbStatusTest, SaysWhatWasDone) {
  const absl::Status status = RocksDbStatus(rocksdb::Status::IOError("disk on fire"), "writing");
  EXPECT_NE(status.message().find("writing"), absl::string_view::npos);
  EXPECT_NE(status.message().find("disk on fire"), absl::string_view::npos);
}

}  // namespace
}  // namespace retroinfer::kvstore
