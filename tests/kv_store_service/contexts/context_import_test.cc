#include "kv_store_service/contexts/context_import.h"

#include <gtest/gtest.h>

#include "tests/kv_store_service/contexts/context_fixture.h"

namespace retroinfer::kvstore {
namespace {

using ContextImportTest = ContextStoreTest;

TEST_F(ContextImportTest, RefusesAnotherModelAtTheFirstBytes) {
  ASSERT_TRUE(SaveText("book", {1}).ok());
  const std::string file = *ExportText("book");
  store_->leases().EndLease(token_, "test");
  Attach("other");
  auto import = ContextImport::Begin(contexts_.get(), tenant_);
  ASSERT_TRUE(import.ok()) << import.status();
  EXPECT_TRUE(import->Append(std::string_view(file).substr(0, 50)).ok());
  EXPECT_EQ(common::ReasonOf(import->Append(std::string_view(file).substr(50, 200))).reason,
            "WRONG_MODEL");
}

TEST_F(ContextImportTest, TakesAFileByteByByteAtItsBeginning) {
  ASSERT_TRUE(SaveText("book", {1}).ok());
  const std::string file = *ExportText("book");
  auto import = ContextImport::Begin(contexts_.get(), tenant_);
  ASSERT_TRUE(import.ok()) << import.status();
  for (size_t i = 0; i < 200; ++i) ASSERT_TRUE(import->Append({&file[i], 1}).ok());
  ASSERT_TRUE(import->Append(std::string_view(file).substr(200)).ok());
  ContextToSave context = ToSave("copy", {});
  const auto imported = import->Finish(std::move(context));
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->context.record.context_name, "copy");
  EXPECT_EQ(imported->written, 0u);
}

// A valid header and then whatever: each must end before it has taken more than it may.
TEST_F(ContextImportTest, AnEndlessBodyIsRefused) {
  ASSERT_TRUE(SaveText("book", {1}).ok());
  const std::string file = *ExportText("book");
  auto import = ContextImport::Begin(contexts_.get(), tenant_);
  ASSERT_TRUE(import.ok()) << import.status();
  absl::Status status = import->Append(file);
  uint64_t sent = file.size();
  const std::string more(100'000, 'x');
  while (status.ok() && sent < 100 * file.size()) {
    status = import->Append(more);
    sent += more.size();
  }
  EXPECT_EQ(common::ReasonOf(status).reason, "BAD_FILE") << status;
  EXPECT_LT(sent, 3 * file.size());
}

TEST_F(ContextImportTest, AFileThatMustBeLargerThanTheCacheIsRefusedAtItsHeader) {
  ASSERT_TRUE(SaveText("book", {1, 2, 3}).ok());
  const std::string file = *ExportText("book");
  contexts_.reset();
  limits_.cap_bytes = 100'000;
  disk_ = MakeInMemorySegmentStorage();
  StartContexts();
  auto import = ContextImport::Begin(contexts_.get(), tenant_);
  ASSERT_TRUE(import.ok()) << import.status();
  const absl::Status status = import->Append(std::string_view(file).substr(0, 1000));
  EXPECT_EQ(common::ReasonOf(status).reason, "CACHE_FULL") << status;
}

TEST_F(ContextImportTest, WhatComesCountsAgainstTheLimitsUntilItIsOver) {
  ASSERT_TRUE(SaveText("book", {1, 2}).ok());
  const std::string file = *ExportText("book");
  contexts_.reset();
  // Room for one such file and half of another under the watermark of 0.9.
  limits_.cap_bytes = SizeOf(**ParseContextFileHeader(file)).most * 5 / 3;
  disk_ = MakeInMemorySegmentStorage();
  StartContexts();
  {
    // Two at once are more than the limit, one after the other is not.
    auto first = ContextImport::Begin(contexts_.get(), tenant_);
    auto second = ContextImport::Begin(contexts_.get(), tenant_);
    ASSERT_TRUE(first.ok() && second.ok());
    ASSERT_TRUE(first->Append(file).ok());
    EXPECT_EQ(common::ReasonOf(second->Append(file)).reason, "CACHE_FULL");
  }
  for (const char* name : {"a", "b"}) {
    auto import = ContextImport::Begin(contexts_.get(), tenant_);
    ASSERT_TRUE(import.ok());
    ASSERT_TRUE(import->Append(file).ok());
    const auto imported = import->Finish(ToSave(name, {}));
    EXPECT_TRUE(imported.ok()) << imported.status();
  }
}

TEST_F(ContextImportTest, ATenantsQuotaHoldsWhileItComes) {
  ASSERT_TRUE(SaveText("book", {1, 2}).ok());
  const std::string file = *ExportText("book");
  contexts_.reset();
  limits_.tenant_quota_bytes = file.size() / 2;
  disk_ = MakeInMemorySegmentStorage();
  StartContexts();
  auto import = ContextImport::Begin(contexts_.get(), tenant_);
  ASSERT_TRUE(import.ok());
  EXPECT_EQ(common::ReasonOf(import->Append(file)).reason, "CACHE_FULL");
}

TEST_F(ContextImportTest, TheReserveOfTheDiskStaysFree) {
  ASSERT_TRUE(SaveText("book", {1}).ok());
  const std::string file = *ExportText("book");
  contexts_.reset();
  reserve_bytes_ = uint64_t{1} << 60;
  StartContexts();
  auto import = ContextImport::Begin(contexts_.get(), tenant_);
  ASSERT_TRUE(import.ok());
  const absl::Status status = import->Append(file);
  EXPECT_EQ(common::ReasonOf(status).reason, "CACHE_FULL") << status;
  EXPECT_NE(status.message().find("kept in reserve"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace retroinfer::kvstore
