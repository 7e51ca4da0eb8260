#include "gpu_worker/model/json_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu_worker/model/temp_folder.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<JsonObject> Parse(const std::string& text,
                                 const common::JsonLimits& limits = kSmallJson) {
  return ParseJsonObject(std::as_bytes(std::span(text)), "f.json", limits);
}

JsonObject MustParse(const std::string& text) {
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

TEST(JsonFileTest, GivesTypedValues) {
  const JsonObject object = MustParse(
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
  EXPECT_FALSE(object.Has("null"));
  EXPECT_FALSE(object.Has("absent"));
}

TEST(JsonFileTest, AbsentAndNullTakeTheDefault) {
  const JsonObject object = MustParse(R"({"null": null})");
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

TEST(JsonFileTest, WrongTypesAndRangesAreRefusedWithKeyAndValue) {
  const JsonObject object = MustParse(
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
}

TEST(JsonFileTest, NamesOfNestedObjectsSayWhereTheyAre) {
  const JsonObject object = MustParse(R"({"outer": {"inner": 5}})");
  ExpectRefused(object.Object("outer")->Bool("inner"), "f.json: outer");
}

TEST(JsonFileTest, WhatIsNotJsonIsRefused) {
  for (const std::string text :
       {"", "{", "[1]", "1", "null", "{\"a\": NaN}", "{\"a\": Infinity}", "{\"a\": 1e999}",
        "{\"a\": 1} x", "{\"a\": 01}", "{'a': 1}", "{\"a\": \"\xff\"}", "{\"a\": /* c */ 1}"}) {
    ExpectRefused(Parse(text), "f.json");
  }
  ExpectRefused(Parse(std::string(5, '\0')), "not valid JSON");
}

TEST(JsonFileTest, DuplicateKeysAreRefused) {
  ExpectRefused(Parse(R"({"a": 1, "b": {"a": 1}, "a": 2})"), "\"a\" twice");
  ExpectRefused(Parse(R"({"o": {"k": 1, "\u006b": 2}})"), "twice");
  EXPECT_TRUE(Parse(R"({"a": {"a": 1}, "b": {"a": 1}})").ok());
}

TEST(JsonFileTest, DepthIsBounded) {
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

TEST(JsonFileTest, SizeAndCountAreBounded) {
  ExpectRefused(Parse("{\"a\": \"" + std::string(2 << 20, 'x') + "\"}"), "at most");
  std::string many = "{\"a\": [0";
  for (int i = 0; i < 200'000; ++i) many += ",0";
  ExpectRefused(Parse(many + "]}"), "more than 100000");
}

TEST(JsonFileTest, MessagesStayShortWhateverTheValue) {
  const JsonObject object =
      MustParse("{\"a\": \"" + std::string(500'000, 'x') + "\", \"b\": \"\xc3\xa9\\u0000\\n\"}");
  ExpectRefused(object.Int("a", 0, 1), "xxx\"...");
  ExpectRefused(object.Int("b", 0, 1), "\\xc3\\xa9\\x00\\n");
}

TEST(JsonFileTest, ReadsFiles) {
  test_support::TempFolder folder;
  const auto object = LoadJsonFile(folder.Write("c.json", R"({"k": 4})"));
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ(*object->Int("k", 0, 9), 4);
  EXPECT_EQ(LoadJsonFile(folder.File("none.json")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(LoadJsonFile(folder.Write("empty.json", "")).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace retroinfer
