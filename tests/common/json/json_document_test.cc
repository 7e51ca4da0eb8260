#include "common/json/json_document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace retroinfer::common {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string ErrorOf(std::string_view text, const JsonLimits& limits = {}) {
  const auto document = JsonDocument::Parse(text, limits);
  EXPECT_FALSE(document.ok()) << text.substr(0, 100);
  if (document.ok()) return "";
  EXPECT_EQ(document.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_LT(document.status().message().size(), 300u);
  return std::string(document.status().message());
}

JsonDocument Parsed(std::string_view text) {
  auto document = JsonDocument::Parse(text, {});
  EXPECT_TRUE(document.ok()) << document.status() << ": " << text;
  return *std::move(document);
}

TEST(JsonDocument, ReadsWhatIsJson) {
  const JsonDocument document =
      Parsed(R"( {"a": [1, -2, 2.5, true, null, "x\u00e9\n"], "b": {"c": {}}} )");
  const JsonValue root = document.root();
  EXPECT_EQ(root.Find("a")->Text(), "[1,-2,2.5,true,null,\"x\u00e9\\n\"]");
  EXPECT_EQ(root.Find("b")->Find("c")->Size(), 0u);
  EXPECT_FALSE(root.Find("c").has_value());
  EXPECT_FALSE(root.Find("a")->Find("c").has_value());
  EXPECT_EQ(Parsed("18446744073709551615").root().Unsigned(), 18446744073709551615ULL);
}

TEST(JsonDocument, ValuesHaveOneType) {
  const JsonDocument document = Parsed(R"([null, true, 7, -7, 1.5, "s", [1], {"k": 1}])");
  std::vector<std::string> types;
  for (const JsonValue value : document.root().Elements()) types.push_back(value.TypeName());
  EXPECT_THAT(types, ElementsAre("null", "boolean", "number", "number", "number", "string", "array",
                                 "object"));
  auto it = document.root().Elements().begin();
  EXPECT_TRUE((*it).IsNull());
  EXPECT_EQ((*++it).Bool(), true);
  EXPECT_EQ((*it).Number(), std::nullopt);
  EXPECT_EQ((*++it).Int(), 7);
  EXPECT_EQ((*it).Unsigned(), 7u);
  EXPECT_EQ((*it).Number(), 7.0);
  EXPECT_EQ((*++it).Int(), -7);
  EXPECT_EQ((*it).Unsigned(), std::nullopt);
  EXPECT_EQ((*++it).Int(), std::nullopt);
  EXPECT_EQ((*it).Number(), 1.5);
  EXPECT_EQ((*++it).String(), "s");
  EXPECT_EQ((*it).Bool(), std::nullopt);
  EXPECT_EQ((*++it).Size(), 1u);
  EXPECT_EQ((*it).String(), std::nullopt);
  EXPECT_TRUE((*++it).IsObject());
  EXPECT_FALSE((*it).Elements().begin() != (*it).Elements().end());
}

TEST(JsonDocument, MembersStayInTheOrderOfTheText) {
  const JsonDocument document = Parsed(R"({"z": 1, "a": {"y": 2, "b": [3]}, "m": null})");
  std::vector<std::string> keys;
  for (const JsonMember& member : document.root().Members()) keys.emplace_back(member.key);
  EXPECT_THAT(keys, ElementsAre("z", "a", "m"));
  EXPECT_EQ(document.root().Text(), R"({"z":1,"a":{"y":2,"b":[3]},"m":null})");
}

TEST(JsonDocument, RefusesWhatIsNot) {
  for (const char* text :
       {"",    " ",           "{",        "[1,]",      "{\"a\":1,}",  "{'a':1}",
        "NaN", "{\"a\":NaN}", "Infinity", "-Infinity", "01",          "1.",
        ".5",  "+1",          "0x10",     "nul",       "[1] 2",       "{\"a\" 1}",
        "\"a", "// c\n1",     "\"\t\"",   "\"\\x\"",   "\"\\ud800\"", "\"\\udc00\\ud800\"",
        "[",   "]",           "{]"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("is not valid JSON")) << text;
  }
  ErrorOf(std::string(5, '\0'));
  ErrorOf(std::string(1'000'000, '{'));
}

TEST(JsonDocument, RefusesBytesThatAreNoUtf8AndDoesNotRepeatThem) {
  for (const std::string bytes :
       {"\xff", "\xc3", "\xe2\x82", "\xed\xa0\x80", "\xc0\xaf", "\xf5\x80\x80\x80"}) {
    const std::string error = ErrorOf("{\"a\": \"" + bytes + "\"}");
    EXPECT_THAT(error, Not(HasSubstr(bytes)));
    EXPECT_THAT(error, HasSubstr("UTF-8"));
  }
}

TEST(JsonDocument, IntegersBeyond64BitsAreDoubles) {
  // As the files of tokenizers say that there is no limit.
  const JsonDocument document = Parsed(
      R"({"model_max_length": 1000000000000000019884624838656, "t": "99999999999999999999",
          "u": 18446744073709551615, "v": 18446744073709551616, "i": -9223372036854775808,
          "j": -9223372036854775809, "f": 0.12345678901234567890123, "e": 1e-0000000000000000000002,
          "l": [100000000000000000000,1]})");
  const JsonValue root = document.root();
  EXPECT_EQ(root.Find("model_max_length")->Number(), 1e30);
  EXPECT_EQ(root.Find("model_max_length")->Int(), std::nullopt);
  EXPECT_EQ(root.Find("t")->String(), "99999999999999999999");
  EXPECT_EQ(root.Find("u")->Unsigned(), 18446744073709551615ULL);
  EXPECT_EQ(root.Find("v")->Unsigned(), std::nullopt);
  EXPECT_EQ(root.Find("v")->Number(), 18446744073709551616.0);
  EXPECT_EQ(root.Find("i")->Int(), INT64_MIN);
  EXPECT_EQ(root.Find("j")->Number(), -9223372036854775809.0);
  EXPECT_EQ(root.Find("f")->Number(), 0.12345678901234567890123);
  EXPECT_EQ(root.Find("e")->Number(), 1e-2);
  EXPECT_EQ(root.Find("l")->Text(), "[1e+20,1]");
}

TEST(JsonDocument, RefusesNumbersThatNoDoubleHolds) {
  EXPECT_THAT(ErrorOf("[1e999]"), HasSubstr("number"));
  EXPECT_THAT(ErrorOf(absl::StrCat("[-", std::string(400, '9'), "]")), HasSubstr("number"));
  EXPECT_THAT(ErrorOf("[100000000000000000000x]"), HasSubstr("is not valid JSON"));
  EXPECT_EQ(Parsed("1e300").root().Number(), 1e300);
}

TEST(JsonDocument, RefusesAKeyThatIsThereTwice) {
  EXPECT_THAT(ErrorOf(R"({"a": 1, "a": 1})"), HasSubstr("\"a\" twice"));
  EXPECT_THAT(ErrorOf(R"([{"x": {"a": 1, "b": 2, "\u0061": 3}}])"), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf("{\"\xc3\xa9\\n\": 1, \"\xc3\xa9\\n\": 1}"), HasSubstr("\\xc3\\xa9\\n"));
  Parsed(R"({"a": {"a": 1}, "b": {"a": 1}})");
  std::string many = "{\"k\": 0";  // more than are compared one by one
  for (int i = 0; i < 1000; ++i) many += ", \"" + std::to_string(i) + "\": 0";
  Parsed(many + "}");
  EXPECT_THAT(ErrorOf(many + ", \"500\": 0}"), HasSubstr("\"500\" twice"));
  const std::string name(10'000, 'x');
  ErrorOf(absl::StrCat("{\"", name, "\": 1, \"", name,
                       "\": 2}"));  // which checks that the message is short
}

TEST(JsonDocument, BoundsTheDepth) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  for (const size_t depth_max : {4, 64}) {
    const JsonLimits limits{.depth_max = depth_max};
    EXPECT_TRUE(JsonDocument::Parse(nested(depth_max), limits).ok());
    EXPECT_THAT(ErrorOf(nested(depth_max + 1), limits), HasSubstr("nested deeper than"));
    EXPECT_THAT(ErrorOf(nested(depth_max + 9), limits), HasSubstr("nested deeper than"));
  }
  ErrorOf(std::string(500'000, '['));
  std::string objects;
  for (int i = 0; i < 50'000; ++i) objects += "{\"a\":";
  ErrorOf(objects);
  objects.append("1").append(50'000, '}');
  EXPECT_THAT(ErrorOf(objects), HasSubstr("deeper"));
}

TEST(JsonDocument, BoundsTheNumberOfValues) {
  const JsonLimits limits{.values_max = 3, .depth_max = 4};
  for (const char* text : {"[1,2]", " [ 1 , 2 ] ", "[[[]]]", R"({"a":1,"b":2})",
                           "[\"a,[b\\\",\", 1]", R"({"a": [ ], "b": { }})"}) {
    EXPECT_TRUE(JsonDocument::Parse(text, limits).ok()) << text;
  }
  for (const char* text :
       {"[1,2,3]", "[[[[]]]]", "[[1,2]]", R"({"a":[1],"b":2})", "[\"\\\\\",2,3]"}) {
    EXPECT_EQ(ErrorOf(text, limits), "has more than 3 values") << text;
  }
}

TEST(JsonDocument, BoundsTheSize) {
  EXPECT_EQ(ErrorOf(absl::StrCat("\"", std::string(200, 'x'), "\""), {.bytes_max = 100}),
            "has 202 bytes; at most 100 are accepted");
}

TEST(JsonDocument, SamenessIsThatOfMeaning) {
  const auto same = [](std::string_view a, std::string_view b) {
    return Parsed(a).root().SameAs(Parsed(b).root());
  };
  EXPECT_TRUE(same(R"({"a": 1, "b": [true, null, "x"]})", R"({"b": [true, null, "x"], "a": 1.0})"));
  EXPECT_TRUE(same("18446744073709551615", "18446744073709551615"));
  EXPECT_FALSE(same("9007199254740993", "9007199254740992"));  // equal as doubles
  EXPECT_FALSE(same(R"({"a": 1})", R"({"a": 1, "b": 1})"));
  EXPECT_FALSE(same("[1, 2]", "[2, 1]"));
  EXPECT_FALSE(same("[1]", "[1, 2]"));
  EXPECT_FALSE(same("true", "false"));
  EXPECT_FALSE(same("null", "0"));
  EXPECT_FALSE(same(R"("1")", "1"));
}

}  // namespace
}  // namespace retroinfer::common
