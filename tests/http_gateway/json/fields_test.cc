#include "http_gateway/json/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/error_reason.h"
#include "http_gateway/json/json_text.h"

namespace retroinfer::gateway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ParamOf(const absl::Status& status) {
  return common::ReasonOf(status).metadata["param"];
}

TEST(Fields, ReadsTypesAndTakesNullForAbsent) {
  const Json json = Json::parse(R"({"b": true, "s": "x", "d": 1.5, "i": 7, "f": 5.0, "n": null})");
  Fields fields = *Fields::Of(json);
  std::optional<bool> b, missing;
  std::optional<std::string> s, null;
  std::optional<double> d;
  std::optional<int64_t> i, f;
  EXPECT_TRUE(fields.Read("b", &b).ok() && fields.Read("s", &s).ok() && fields.Read("d", &d).ok());
  EXPECT_TRUE(fields.Read("i", &i, 0, 7).ok() && fields.Read("f", &f, 0, 7).ok());
  EXPECT_TRUE(fields.Read("n", &null).ok() && fields.Read("missing", &missing).ok());
  EXPECT_EQ(b, true);
  EXPECT_EQ(s, "x");
  EXPECT_EQ(d, 1.5);
  EXPECT_EQ(i, 7);
  EXPECT_EQ(f, 5);
  EXPECT_FALSE(null.has_value() || missing.has_value());
  EXPECT_TRUE(fields.CheckUnknown().ok());
}

TEST(Fields, RefusesOtherTypesByName) {
  const Json json =
      Json::parse(R"({"x": "1", "t": true, "h": 1.5, "big": 1e18, "u": 18446744073709551615})");
  Fields fields = *Fields::Of(json, "outer");
  std::optional<int64_t> number;
  std::optional<double> real;
  std::optional<std::string> text;
  for (const char* name : {"x", "t", "h", "big", "u"}) {
    const absl::Status status = fields.Read(name, &number, 0, 100);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(ParamOf(status), std::string("outer.") + name);
  }
  EXPECT_FALSE(fields.Read("t", &real).ok());  // true is no number
  EXPECT_FALSE(fields.Read("t", &text).ok());
  EXPECT_FALSE(Fields::Of(Json::array()).ok());
}

TEST(Fields, RefusesWhatNobodyAskedFor) {
  const Json json = Json::parse(R"({"known": 1, "strange\n": 2})");
  Fields fields = *Fields::Of(json);
  fields.Ignore("known");
  const absl::Status status = fields.CheckUnknown();
  EXPECT_EQ(common::ReasonOf(status).reason, "UNKNOWN_PARAMETER");
  EXPECT_THAT(std::string(status.message()), HasSubstr("strange\\n"));
}

TEST(Fields, RefusesWhatIsNotOfferedUnlessItAsksForNothing) {
  const Json json = Json::parse(R"({"a": null, "b": false, "c": [], "d": "text", "e": 1})");
  Fields fields = *Fields::Of(json);
  for (const char* name : {"a", "b", "c", "missing"})
    EXPECT_TRUE(fields.NotOffered(name, "no").ok());
  EXPECT_TRUE(fields.NotOffered("d", "no", "text").ok());
  const absl::Status status = fields.NotOffered("e", "there is none");
  EXPECT_EQ(common::ReasonOf(status).reason, "UNSUPPORTED_PARAMETER");
  EXPECT_EQ(ParamOf(status), "e");
}

TEST(Fields, ReadsTokenIds) {
  std::vector<int32_t> ids;
  EXPECT_TRUE(Fields::ReadIds(Json::parse("[0, 5, 2147483647]"), "p", &ids).ok());
  EXPECT_THAT(ids, ElementsAre(0, 5, 2147483647));
  for (const char* bad : {"[-1]", "[2147483648]", "[1.5]", "[\"1\"]", "[null]", "{}", "[[1]]"}) {
    EXPECT_FALSE(Fields::ReadIds(Json::parse(bad), "p", &ids).ok()) << bad;
  }
}

TEST(JsonText, IsOneLineThatParsesToTheSame) {
  std::string text = "a\"b\\c\n\r\t\x01\x7f \u20ac";
  text.push_back('\0');
  const std::string json = JsonString(text);
  EXPECT_EQ(json.find('\n'), std::string::npos);
  EXPECT_EQ(Json::parse(json).get<std::string>(), text);
}

TEST(Fields, NotesWhatIsIgnoredWhereThatIsAllowed) {
  const Json json = Json::parse(R"({"hint": 1, "inner": {"x": 1}, "strange": 2, "none": null})");
  IgnoredNames ignored;
  Fields lenient = *Fields::Of(json, "", &ignored);
  EXPECT_TRUE(lenient.Hint("hint", "no").ok());
  Fields inner = *lenient.Inner(*lenient.Find("inner"), "inner");
  EXPECT_TRUE(inner.CheckUnknown().ok());
  EXPECT_TRUE(lenient.Hint("none", "no").ok());
  EXPECT_TRUE(lenient.CheckUnknown().ok());
  EXPECT_EQ(ignored.ToString(), "hint, inner.x, strange");
  EXPECT_EQ(ParamOf(lenient.NotOffered("strange", "no")), "strange");

  Fields strict = *Fields::Of(json);
  EXPECT_EQ(ParamOf(strict.Hint("hint", "no")), "hint");
  EXPECT_EQ(ParamOf(strict.Inner(*strict.Find("inner"), "inner")->CheckUnknown()), "inner.x");
  EXPECT_EQ(ParamOf(strict.CheckUnknown()), "strange");
}

}  // namespace
}  // namespace retroinfer::gateway
