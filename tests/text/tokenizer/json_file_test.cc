#include "text/tokenizer/json_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/tokenizer/tokenizer_fixtures.h"

namespace retroinfer {
namespace {

using testing::HasSubstr;

absl::Status ParseText(std::string_view text) { return JsonFile::Parse(text, "a.json").status(); }

TEST(JsonFileTest, HostileFilesAreRefused) {
  const auto deep = [](size_t depth) {
    return std::string(depth, '[') + "1" + std::string(depth, ']');
  };
  EXPECT_TRUE(ParseText(deep(50)).ok());
  for (const std::string& text :
       {deep(100), deep(5'000'000), std::string(1'000'000, '['), std::string(1'000'000, '{'),
        std::string(), std::string("  "), std::string("{\"a\":"), std::string("{'a': 1}"),
        std::string("[1] 2"), std::string("\"\xFF\""), std::string("\"\\ud800\""),
        std::string("\0\0", 2), std::string("nul"), std::string("{\"a\": 1, \"a\": 1}")}) {
    const absl::Status status = ParseText(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 20);
    EXPECT_THAT(Message(status), HasSubstr("a.json"));
  }
}

TEST(JsonFileTest, LargeTextsAreRefused) {
  EXPECT_EQ(ParseText("\"" + std::string(JsonFile::kBytesMax, 'x') + "\"").code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(JsonFileTest, LargeFilesAreRefusedUnread) {
  const TemporaryFolder folder;
  const auto path = folder.Write("a.json", "");
  std::filesystem::resize_file(path, 100'000'000);
  const absl::Status status = JsonFile::Load(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("has 100000000 bytes, at most 67108864"));
}

TEST(JsonFileTest, PathsThatAreNoFilesAreRefused) {
  const TemporaryFolder folder;
  EXPECT_EQ(JsonFile::Load(folder.path() / "absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(JsonFile::Load(folder.path()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(JsonFile::Load("/dev/zero").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(JsonFileTest, ValuesAreReadByTypeAndPlace) {
  const TemporaryFolder folder;
  const auto file = JsonFile::Load(folder.Write(
      "a.json", R"({"t": true, "s": "x", "i": 7, "big": 5000000000, "n": null, "o": {"k": []}})"));
  ASSERT_TRUE(file.ok()) << file.status();
  const PlacedJson root = file->root();
  EXPECT_EQ(*root.BoolOr("t", false), true);
  EXPECT_EQ(*root.BoolOr("absent", true), true);
  EXPECT_EQ(*root.Required("s")->AsString(), "x");
  EXPECT_EQ(*root.Required("i")->AsInt32(), 7);
  EXPECT_FALSE((*root.Optional("n")).has_value());
  const auto error = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return Message(status);
  };
  EXPECT_EQ(error(root.Required("big")->AsInt32().status()),
            "a.json: big: needs to be an integer of 32 bits");
  EXPECT_EQ(error(root.Required("o")->Required("k")->AsString().status()),
            "a.json: o.k: needs to be a string");
  EXPECT_EQ(error(root.Required("s")->AsBool().status()), "a.json: s: needs to be true or false");
  EXPECT_EQ(error(root.Required("s")->AsArray().status()), "a.json: s: needs to be an array");
  EXPECT_EQ(error(root.Required("s")->Optional("k").status()), "a.json: s: needs to be an object");
  EXPECT_EQ(error(root.Required("n").status()), "a.json: the field \"n\" is missing");
  EXPECT_EQ(error(root.Required("o")->AllowOnly({"other"})),
            "a.json: o: the field \"k\" is not supported");
  EXPECT_TRUE(root.Required("o")->AllowOnly({"k", "other"}).ok());
}

}  // namespace
}  // namespace retroinfer
