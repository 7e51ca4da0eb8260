#include "gpu_worker/model/gguf/gguf_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "gpu_worker/model/gguf/gguf_file.h"
#include "tests/gpu_worker/model/gguf/gguf_text.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::GgufRaw;
using test_support::GgufString;
using test_support::GgufText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GgufMetadataTest : public ::testing::Test {
 protected:
  absl::StatusOr<GgufFile> Open(const std::string& bytes) {
    return GgufFile::Open(folder_.Write("x.gguf", bytes));
  }
  void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& part) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }

  test_support::TempFolder folder_;
};

TEST_F(GgufMetadataTest, ReadsEveryType) {
  const auto file = Open(GgufText()
                             .Raw("u8", GgufValueType::kUint8, GgufRaw(uint8_t{200}))
                             .Raw("i8", GgufValueType::kInt8, GgufRaw(int8_t{-2}))
                             .Raw("u16", GgufValueType::kUint16, GgufRaw(uint16_t{60000}))
                             .Raw("i16", GgufValueType::kInt16, GgufRaw(int16_t{-3}))
                             .Int("u32", 4'000'000'000u)
                             .Raw("i32", GgufValueType::kInt32, GgufRaw(int32_t{-4}))
                             .Raw("u64", GgufValueType::kUint64, GgufRaw(uint64_t{1} << 62))
                             .Raw("i64", GgufValueType::kInt64, GgufRaw(int64_t{-5}))
                             .Float("f32", 0.5f)
                             .Raw("f64", GgufValueType::kFloat64, GgufRaw(0.25))
                             .Bool("bool", true)
                             .Text("text", "hello")
                             .Texts("texts", {"a", "", "bc"})
                             .Ints("ints", {1, -1})
                             .Bytes());
  ASSERT_TRUE(file.ok()) << file.status();
  const GgufMetadata& metadata = file->metadata();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(*metadata.Int("u8", kMin, kMax), 200);
  EXPECT_EQ(*metadata.Int("i8", kMin, kMax), -2);
  EXPECT_EQ(*metadata.Int("u16", kMin, kMax), 60000);
  EXPECT_EQ(*metadata.Int("i16", kMin, kMax), -3);
  EXPECT_EQ(*metadata.Int("u32", kMin, kMax), 4'000'000'000);
  EXPECT_EQ(*metadata.Int("i32", kMin, kMax), -4);
  EXPECT_EQ(*metadata.Int("u64", kMin, kMax), int64_t{1} << 62);
  EXPECT_EQ(*metadata.Int("i64", kMin, kMax), -5);
  EXPECT_EQ(*metadata.Number("f32", 0, 1), 0.5);
  EXPECT_EQ(*metadata.Number("f64", 0, 1), 0.25);
  EXPECT_EQ(*metadata.Number("u8", 0, 255), 200);
  EXPECT_TRUE(*metadata.BoolOr("bool", false));
  EXPECT_EQ(*metadata.String("text", 5), "hello");
  EXPECT_THAT(*metadata.Strings("texts", 3), ElementsAre("a", "", "bc"));
  EXPECT_THAT(*metadata.Ints("ints", 2), ElementsAre(1, -1));
  EXPECT_EQ(*metadata.IntOr("absent", 17, 0, 9), 17);
}

TEST_F(GgufMetadataTest, WrongTypesAndValuesAreRefusedWithTheKey) {
  const auto file = Open(GgufText()
                             .Int("number", 7)
                             .Text("text", "hello")
                             .Texts("texts", {"a", "b"})
                             .Float("nan", std::numeric_limits<float>::quiet_NaN())
                             .Raw("large", GgufValueType::kUint64, GgufRaw(~uint64_t{0}))
                             .Raw("maybe", GgufValueType::kBool, GgufRaw(uint8_t{2}))
                             .Bytes());
  ASSERT_TRUE(file.ok()) << file.status();
  const GgufMetadata& metadata = file->metadata();
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectError(metadata.Int("none", 0, 9).status(), kInvalid, "key \"none\": is missing");
  ExpectError(metadata.Int("number", 8, 9).status(), kInvalid, "is 7; needs 8 to 9");
  ExpectError(metadata.Int("text", 0, 9).status(), kInvalid, "must be an integer");
  ExpectError(metadata.Int("large", 0, 9).status(), kInvalid, "must be an integer");
  ExpectError(metadata.Int("texts", 0, 9).status(), absl::StatusCode::kUnimplemented,
              "is an array; one value for all layers is supported");
  ExpectError(metadata.Number("nan", -1e9, 1e9).status(), kInvalid, "is nan; needs");
  ExpectError(metadata.Number("text", 0, 1).status(), kInvalid, "must be a number");
  ExpectError(metadata.BoolOr("maybe", false).status(), kInvalid, "must be true or false");
  ExpectError(metadata.BoolOr("text", false).status(), kInvalid, "must be true or false");
  ExpectError(metadata.String("number", 9).status(), kInvalid, "must be a string");
  ExpectError(metadata.String("text", 4).status(), kInvalid, "has 5 bytes; at most 4");
  ExpectError(metadata.Strings("text", 9).status(), kInvalid, "must be an array");
  ExpectError(metadata.Strings("texts", 1).status(), kInvalid, "has 2 entries; at most 1");
  ExpectError(metadata.Ints("texts", 9).status(), kInvalid, "must be an array of integers");
}

TEST_F(GgufMetadataTest, WhatCannotBeIsRefusedBeforeMemoryIsTaken) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto array = [](uint32_t type, uint64_t count, const std::string& rest) {
    return GgufText()
        .Raw("k", GgufValueType::kArray, GgufRaw(type) + GgufRaw(count) + rest)
        .Bytes();
  };
  ExpectError(Open(array(4, uint64_t{1} << 63, "abcd")).status(), kInvalid,
              "ends within the value of key \"k\"");
  ExpectError(Open(array(8, uint64_t{1} << 63, GgufString("x"))).status(), kInvalid,
              "ends within the value of key \"k\"");
  ExpectError(Open(array(9, 1, "")).status(), absl::StatusCode::kUnimplemented, "arrays of arrays");
  ExpectError(Open(array(13, 1, "")).status(), kInvalid, "has type 13, which is none");
  ExpectError(Open(GgufText().Int("k", 1).Int("k", 1).Bytes()).status(), kInvalid,
              "key \"k\" occurs twice");
  ExpectError(Open(GgufText().Bytes(0, GgufMetadata::kMaxKeys + 1)).status(), kInvalid,
              "says that it has 65537 keys");
  ExpectError(Open(GgufText().Int("k", 1).Bytes(0, 2)).status(), kInvalid, "a key has no name");
}

}  // namespace
}  // namespace retroinfer
