#include "kv_store_service/server/context_import.h"

#include <gtest/gtest.h>

#include "tests/kv_store_service/server/context_fixture.h"

namespace retroinfer::kvstore {
namespace {

using ContextImportTest = ContextStoreTest;

TEST_F(ContextImportTest, RefusesAnotherModelAtTheFirstBytes) {
  ASSERT_TRUE(SaveText("book", {1}).ok());
  const std::string file = *ExportText("book");
  store_->EndLease(token_, "test");
  Attach("other");
  auto import = ContextImport::Begin(contexts_.get());
  ASSERT_TRUE(import.ok()) << import.status();
  EXPECT_TRUE(import->Append(std::string_view(file).substr(0, 50)).ok());
  EXPECT_EQ(common::ReasonOf(import->Append(std::string_view(file).substr(50, 200))).reason,
            "WRONG_MODEL");
}

TEST_F(ContextImportTest, TakesAFileByteByByteAtItsBeginning) {
  ASSERT_TRUE(SaveText("book", {1}).ok());
  const std::string file = *ExportText("book");
  auto import = ContextImport::Begin(contexts_.get());
  ASSERT_TRUE(import.ok()) << import.status();
  for (size_t i = 0; i < 200; ++i) ASSERT_TRUE(import->Append({&file[i], 1}).ok());
  ASSERT_TRUE(import->Append(std::string_view(file).substr(200)).ok());
  ContextToSave context = ToSave("copy", {});
  const auto imported = import->Finish(std::move(context), false);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->context.record.context_name, "copy");
  EXPECT_EQ(imported->written, 0u);
}

}  // namespace
}  // namespace retroinfer::kvstore
