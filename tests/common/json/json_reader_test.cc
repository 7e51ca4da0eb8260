#include "common/json/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temp_folder.h"

namespace retroinfer::common {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<JsonReader> Parse(const std::string& text, const JsonLimits& limits = kSmallJson) {
  return JsonReader::ParseObject(text, "f.json", limits);
}

JsonReader MustParse(const std::string& text) {
  auto object = Parse(text);
  EXPECT_TRUE(object.ok()) << object.status();
  return *std::move(object);
}

// Checks that `status` is INVALID_ARGUMENT and that its message names the file and has `part`.
template <typename T>
void ExpectRefused(const absl::StatusOr<T>& result, const std::string& part) {
  ASSERT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("f.json"));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(part));
  EXPECT_LT(result.status().message().size(), 1000u);
}

TEST(JsonReaderTest, GivesTypedValues) {
  const JsonReader object = MustParse(
      R"({"i": -3, "d": 2.5, "b": true, "s": "x", "o": {"k": 1}, "l": ["a", "b"], "n": [1, 2],
          "null": null})");
  EXPECT_EQ(*object.Int("i", -10, 10), -3);
  EXPECT_EQ(*object.Number("d", 0, 10), 2.5);
  EXPECT_EQ(*object.Number("i", -10, 10), -3.0);
  EXPECT_TRUE(*object.Bool("b"));
  EXPECT_EQ(*object.String("s"), "x");
  EXPECT_EQ(*object.Object("o")->Int("k", 0, 1), 1);
  EXPECT_THAT(*object.StringList("l", 2), ElementsAre("a", "b"));
  EXPECT_THAT(*object.IntList("n", 0, 9, 2), ElementsAre(1, 2));
  EXPECT_THAT(*object.IntList("i", -5, 9, 1), ElementsAre(-3));
  EXPECT_THAT(*object.NumberList("n", 0.5, 9, 2), ElementsAre(1.0, 2.0));
  EXPECT_FALSE(object.Has("null"));
  EXPECT_FALSE(object.Has("absent"));
}

TEST(JsonReaderTest, AbsentAndNullTakeTheDefault) {
  const JsonReader object = MustParse(R"({"null": null})");
  for (const char* key : {"null", "absent"}) {
    EXPECT_EQ(*object.IntOr(key, 7, 0, 1), 7);
    EXPECT_EQ(*object.NumberOr(key, 0.5, 1, 2), 0.5);
    EXPECT_TRUE(*object.BoolOr(key, true));
    ExpectRefused(object.Int(key, 0, 1), key);
    ExpectRefused(object.Number(key, 0, 1), "missing");
    ExpectRefused(object.Bool(key), "missing");
    ExpectRefused(object.String(key), "missing");
    ExpectRefused(object.Object(key), "missing");
    ExpectRefused(object.StringList(key, 1), "missing");
    ExpectRefused(object.IntList(key, 0, 1, 1), "missing");
  }
}

TEST(JsonReaderTest, WrongTypesAndRangesAreRefusedWithKeyAndValue) {
  const JsonReader object = MustParse(
      R"({"f": 1.5, "s": "text", "o": {}, "u": 18446744073709551615, "l": [1, "a"], "b": true})");
  ExpectRefused(object.Int("f", 0, 9), "\"f\" is 1.5");
  ExpectRefused(object.Int("s", 0, 9), "\"text\"");
  ExpectRefused(object.Int("b", 0, 9), "true");
  ExpectRefused(object.Int("u", 0, INT64_MAX), "18446744073709551615");
  ExpectRefused(object.IntList("u", 0, INT64_MAX, 1), "18446744073709551615");
  ExpectRefused(object.IntOr("f", 0, 0, 9), "needs an integer from 0 to 9");
  ExpectRefused(object.Number("f", 2, 3), "from 2 to 3");
  ExpectRefused(object.Number("o", 2, 3), "an object");
  ExpectRefused(object.Bool("f"), "true or false");
  ExpectRefused(object.String("f"), "a string");
  ExpectRefused(object.Object("l"), "an array");
  ExpectRefused(object.StringList("l", 9), "strings");
  ExpectRefused(object.IntList("l", 0, 9, 9), "array");
  ExpectRefused(object.IntList("l", 0, 9, 1), "at most 1");
  ExpectRefused(object.NumberList("l", 0, 9, 9), "array");
  ExpectRefused(object.NumberList("l", 0, 9, 1), "at most 1");
  ExpectRefused(object.NumberList("f", 0, 9, 1), "array");
}

TEST(JsonReaderTest, NamesOfNestedObjectsSayWhereTheyAre) {
  const JsonReader object = MustParse(R"({"outer": {"inner": 5}})");
  ExpectRefused(object.Object("outer")->Bool("inner"), "f.json: outer");
}

TEST(JsonReaderTest, WhatIsNotJsonIsRefused) {
  for (const std::string text :
       {"", "{", "[1]", "1", "null", "{\"a\": NaN}", "{\"a\": Infinity}", "{\"a\": 1e999}",
        "{\"a\": 1} x", "{\"a\": 01}", "{'a': 1}", "{\"a\": \"\xff\"}", "{\"a\": /* c */ 1}"}) {
    ExpectRefused(Parse(text), "f.json");
  }
  ExpectRefused(Parse(std::string(5, '\0')), "not valid JSON");
}

TEST(JsonReaderTest, DuplicateKeysAreRefused) {
  ExpectRefused(Parse(R"({"a": 1, "b": {"a": 1}, "a": 2})"), "\"a\" twice");
  ExpectRefused(Parse(R"({"o": {"k": 1, "\u006b": 2}})"), "twice");
  EXPECT_TRUE(Parse(R"({"a": {"a": 1}, "b": {"a": 1}})").ok());
}

TEST(JsonReaderTest, DepthIsBounded) {
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  EXPECT_TRUE(Parse(nested(16)).ok());
  ExpectRefused(Parse(nested(17)), "deeper than 16");
  ExpectRefused(Parse(nested(40'000)), "deeper");
  std::string objects;
  for (int i = 0; i < 40'000; ++i) objects += "{\"a\":";
  ExpectRefused(Parse(objects + "1" + std::string(40'000, '}')), "deeper");
}

TEST(JsonReaderTest, SizeAndCountAreBounded) {
  ExpectRefused(Parse("{\"a\": \"" + std::string(2 << 20, 'x') + "\"}"), "at most");
  std::string many = "{\"a\": [0";
  for (int i = 0; i < 200'000; ++i) many += ",0";
  ExpectRefused(Parse(many + "]}"), "more than 100000");
}

TEST(JsonReaderTest, MessagesStayShortWhateverTheValue) {
  const JsonReader object =
      MustParse("{\"a\": \"" + std::string(500'000, 'x') + "\", \"b\": \"\xc3\xa9\\u0000\\n\"}");
  ExpectRefused(object.Int("a", 0, 1), "xxx\"...");
  ExpectRefused(object.Int("b", 0, 1), "\\xc3\\xa9\\x00\\n");
}

absl::Status LoadError(const std::string& path, const JsonLimits& limits = kSmallJson) {
  return JsonReader::LoadObject(path, "a.json", limits).status();
}

TEST(JsonReaderTest, ValuesAreReadByTypeAndPlace) {
  const JsonReader root =
      MustParse(R"({"t": true, "s": "x", "i": 7, "n": null, "o": {"k": [], "d": 0.5}})");
  EXPECT_TRUE(*root.Required("t")->AsBool());
  EXPECT_EQ(*root.Required("s")->AsString(), "x");
  EXPECT_EQ(*root.Required("i")->AsInt(0, 9), 7);
  EXPECT_EQ(*root.Required("o")->Required("d")->AsNumber(0, 1), 0.5);
  EXPECT_FALSE((*root.Optional("n")).has_value());
  const auto error = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(error(root.Required("i")->AsInt(0, 5).status()),
            "f.json: i: is 7; needs an integer from 0 to 5");
  EXPECT_EQ(error(root.Required("o")->Required("k")->AsString().status()),
            "f.json: o.k: is an array; needs a string");
  EXPECT_EQ(error(root.Required("s")->AsBool().status()),
            "f.json: s: is \"x\"; needs true or false");
  EXPECT_EQ(error(root.Required("s")->AsArray().status()), "f.json: s: is \"x\"; needs an array");
  EXPECT_EQ(error(root.Required("s")->Optional("k").status()),
            "f.json: s: is \"x\"; needs an object");
  EXPECT_EQ(error(root.Required("n").status()), "f.json: key \"n\" is missing");
  EXPECT_EQ(error(root.Required("o")->AllowOnly({"d"})), "f.json: o: key \"k\" is not supported");
  EXPECT_TRUE(root.Required("o")->AllowOnly({"k", "d", "other"}).ok());
  EXPECT_EQ(error(root.Required("s")->Int("k", 0, 1).status()),
            "f.json: s: is \"x\"; needs an object");
  EXPECT_EQ(error(root.Bare(root.json()).Error("is wrong")), "is wrong");
}

TEST(JsonReaderTest, FilesThatAreTooLargeOrNoFilesAreRefusedUnread) {
  test_support::TempFolder folder;
  const std::string path = folder.Write("a.json", "");
  std::filesystem::resize_file(path, 100'000'000);
  const absl::Status status = LoadError(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a.json"));
  EXPECT_EQ(LoadError(folder.File("none")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(LoadError("/tmp").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LoadError("/dev/zero").code(), absl::StatusCode::kInvalidArgument);
}

TEST(JsonReaderTest, ReadsFiles) {
  test_support::TempFolder folder;
  const auto object = JsonReader::LoadObject(folder.Write("c.json", R"({"k": 4})"), "c.json");
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ(*object->Int("k", 0, 9), 4);
  EXPECT_EQ(JsonReader::LoadObject(folder.File("none.json"), "c.json").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(JsonReader::LoadObject(folder.Write("empty.json", ""), "c.json").status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace retroinfer::common
