// Contexts that are verified and moved between stores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv_store_service/contexts/context_import.h"
#include "tests/kv_store_service/contexts/context_fixture.h"

namespace retroinfer::kvstore {
namespace {

std::string Reason(const absl::Status& status) { return common::ReasonOf(status).reason; }

class ContextTransferTest : public ContextStoreTest {
 protected:
  // Another machine: an empty disk and arena.
  void StartElsewhere() {
    contexts_.reset();
    disk_ = MakeInMemorySegmentStorage();
    StartContexts();
  }
  absl::StatusOr<ImportedContext> Import(const std::string& file, const std::string& salt = "",
                                         bool replace = false) {
    auto import = ContextImport::Begin(contexts_.get(), common::SaltHash(salt));
    if (!import.ok()) return import.status();
    for (size_t begin = 0; begin < file.size(); begin += 100'000) {
      const absl::Status status = import->Append(std::string_view(file).substr(begin, 100'000));
      if (!status.ok()) return status;
    }
    ContextToSave context = ToSave("", {}, salt);
    context.segments.clear();
    context.replace = replace;
    return import->Finish(std::move(context));
  }
};

TEST_F(ContextTransferTest, VerifyFindsDamage) {
  ASSERT_TRUE(SaveText("book", {1, 2, 3}).ok());
  auto report = contexts_->Verify(tenant_, "book");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->intact, 3u);
  EXPECT_EQ(report->bytes_checked, disk_->Stats().image_bytes);

  ASSERT_TRUE(disk_->Delete(std::vector{NamedChain({1, 2})[1].name}).ok());
  storage_->damages_ = true;
  report = contexts_->Verify(tenant_, "book");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->missing, 1u);
  EXPECT_EQ(report->damaged, 2u);
  EXPECT_EQ(report->problems.size(), 2u);
  EXPECT_EQ(disk_->List().size(), 0u);
  EXPECT_EQ(Reason(contexts_->Verify(tenant_, "none").status()), "NO_SUCH_CONTEXT");
  EXPECT_TRUE(absl::IsCancelled(contexts_->Verify(tenant_, "book", [] { return true; }).status()));
  // Saving again makes it whole from what is in the arena.
  storage_->damages_ = false;
  const std::vector<SegmentIdentity> chain = NamedChain({1, 2, 3}, 1024);
  ContextToSave again = ToSave("book", chain);
  again.replace = true;
  ASSERT_TRUE(SaveAll(again, chain).ok());
  EXPECT_EQ(contexts_->Verify(tenant_, "book")->intact, 3u);
}

TEST_F(ContextTransferTest, MovesToAnotherStoreAndTenant) {
  ASSERT_TRUE(SaveText("book", {1, 2}).ok());
  const auto file = ExportText("book");
  ASSERT_TRUE(file.ok()) << file.status();
  StartElsewhere();
  const auto imported = Import(*file, "salt");
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->written, 2u);
  EXPECT_EQ(imported->context.record.context_name, "book");
  EXPECT_EQ(imported->context.record.num_tokens, 2 * 1024u + 74);
  EXPECT_EQ(contexts_->List(tenant_)->size(), 0u);
  EXPECT_EQ(Reserve(1, NamedChain({1, 2}, 1024, "salt")).num_cached, 2u);
  EXPECT_EQ(Reserve(2, NamedChain({1, 2})).num_cached, 0u);
  EXPECT_EQ(contexts_->Verify(common::SaltHash("salt"), "book")->intact, 2u);
  EXPECT_EQ(Reason(Import(*file, "salt").status()), "CONTEXT_EXISTS");
  EXPECT_EQ(Import(*file, "salt", true)->written, 0u);
}

TEST_F(ContextTransferTest, RefusesWhatWasCutOrChanged) {
  ASSERT_TRUE(SaveText("book", {1}).ok());
  const std::string file = *ExportText("book");
  StartElsewhere();
  for (const size_t size : {size_t{0}, size_t{7}, size_t{40}, size_t{130}, file.size() / 2,
                            file.size() - 33, file.size() - 1}) {
    const auto imported = Import(file.substr(0, size));
    EXPECT_EQ(Reason(imported.status()), "BAD_FILE") << size << imported.status();
  }
  for (size_t i = 0; i < 60; ++i) {
    std::string flipped = file;
    flipped[i < 30 ? i * 5 : i * (file.size() / 60) + 7] ^= 0x10;
    const auto imported = Import(flipped);
    EXPECT_FALSE(imported.ok()) << i;
    EXPECT_THAT(Reason(imported.status()), testing::AnyOf("BAD_FILE", "WRONG_FORMAT")) << i;
  }
  EXPECT_EQ(Reason(Import(file + "x").status()), "BAD_FILE");
  EXPECT_EQ(disk_->List().size(), 0u);
  EXPECT_EQ(contexts_->List(tenant_)->size(), 0u);
  EXPECT_TRUE(Import(file).ok());
}

TEST_F(ContextTransferTest, RefusesAnotherModelOrGeometry) {
  ASSERT_TRUE(SaveText("book", {1}).ok());
  const std::string file = *ExportText("book");
  store_->leases().EndLease(token_, "test");
  EXPECT_EQ(Import(file).status().code(), absl::StatusCode::kFailedPrecondition);  // no worker
  Attach("other");
  EXPECT_EQ(Reason(ExportText("book").status()), "WRONG_MODEL");
  auto wrong = Import(file);
  EXPECT_EQ(Reason(wrong.status()), "WRONG_MODEL");
  EXPECT_THAT(std::string(wrong.status().message()), testing::HasSubstr("another model"));
  store_->leases().EndLease(token_, "test");
  Attach("model", 1);
  wrong = Import(file);
  EXPECT_EQ(Reason(wrong.status()), "WRONG_MODEL");
  EXPECT_THAT(std::string(wrong.status().message()), testing::HasSubstr("2 layers"));
}

TEST_F(ContextTransferTest, AnImageThatIsNoSegmentLeavesNothing) {
  ASSERT_TRUE(SaveText("book", {1, 2}).ok());
  storage_->damages_ = true;  // export passes on what the disk says
  const std::string file = *ExportText("book");
  StartElsewhere();
  EXPECT_EQ(Reason(Import(file).status()), "BAD_FILE");
  EXPECT_EQ(disk_->List().size(), 0u);
}

TEST_F(ContextTransferTest, WithoutRoomNothingIsImported) {
  ASSERT_TRUE(SaveText("book", {1, 2, 3}).ok());
  const std::string file = *ExportText("book");
  limits_.cap_bytes = 2 * disk_->Stats().image_bytes / 3;
  StartElsewhere();
  EXPECT_EQ(Reason(Import(file).status()), "CACHE_FULL");
  EXPECT_EQ(disk_->List().size(), 0u);
}

}  // namespace
}  // namespace retroinfer::kvstore
