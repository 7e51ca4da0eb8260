#include "http_gateway/api/constraint_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

class ConstraintFieldsTest : public ::testing::Test {
 protected:
  // The field that asked, or the parameter that is wrong behind "!".
  std::string Read(const std::string& text) {
    const Json body = Json::parse(text);
    absl::StatusOr<Fields> fields = Fields::Of(body);
    request_.Clear();
    const absl::StatusOr<std::string> asked = ReadConstraint(*fields, &request_);
    if (asked.ok()) return *asked;
    return "!" + common::ReasonOf(asked.status()).metadata["param"];
  }
  const v1::Constraint& constraint() const { return request_.constraint(); }

  v1::GenerateRequest request_;
};

TEST_F(ConstraintFieldsTest, TextIsNoConstraint) {
  for (const char* text :
       {"{}", R"({"response_format": {"type": "text"}})", R"({"response_format": null})",
        R"({"structured_outputs": {}})", R"({"structured_outputs": {"json_object": false}})"}) {
    EXPECT_EQ(Read(text), "") << text;
    EXPECT_FALSE(request_.has_constraint());
  }
}

TEST_F(ConstraintFieldsTest, ReadsTheFormatsOfOpenAi) {
  EXPECT_EQ(Read(R"({"response_format": {"type": "json_object"}})"), "response_format");
  EXPECT_EQ(constraint().json_schema(), R"({"type":"object"})");
  EXPECT_EQ(Read(R"({"response_format": {"type": "json_schema", "json_schema":
                    {"name": "n", "strict": false, "description": "d",
                     "schema": {"z": 1, "a": 2}}}})"),
            "response_format");
  EXPECT_EQ(constraint().json_schema(), R"({"z":1,"a":2})");
  EXPECT_EQ(Read(R"({"response_format": {"type": "json_schema", "name": "n", "strict": true,
                    "schema": {"a": 2}}})"),
            "response_format");
  EXPECT_EQ(constraint().json_schema(), R"({"a":2})");
  EXPECT_EQ(Read(R"({"response_format": {"type": "json_object", "schema": {"a": 3}}})"),
            "response_format");
  EXPECT_EQ(constraint().json_schema(), R"({"a":3})");
}

TEST_F(ConstraintFieldsTest, ReadsTheNamesOfOtherServers) {
  EXPECT_EQ(Read(R"({"guided_json": {"a": 1}})"), "guided_json");
  EXPECT_EQ(constraint().json_schema(), R"({"a":1})");
  EXPECT_EQ(Read(R"({"guided_json": "{ \"a\":\n1}"})"), "guided_json");
  EXPECT_EQ(constraint().json_schema(), R"({"a":1})");
  EXPECT_EQ(Read(R"({"guided_regex": "a+"})"), "guided_regex");
  EXPECT_EQ(constraint().regex(), "a+");
  EXPECT_EQ(Read(R"({"guided_choice": ["a", "b"]})"), "guided_choice");
  EXPECT_EQ(constraint().choices().texts_size(), 2);
  EXPECT_EQ(Read(R"({"guided_grammar": "root ::= \"x\""})"), "guided_grammar");
  EXPECT_EQ(constraint().grammar(), "root ::= \"x\"");
  EXPECT_EQ(Read(R"({"structured_outputs": {"regex": "a"}})"), "structured_outputs");
  EXPECT_EQ(constraint().regex(), "a");
  EXPECT_EQ(Read(R"({"structured_outputs": {"json_object": true}})"), "structured_outputs");
  EXPECT_EQ(constraint().json_schema(), R"({"type":"object"})");
}

TEST_F(ConstraintFieldsTest, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"response_format": 5})", "response_format"},
      {R"({"response_format": {"type": "xml"}})", "response_format.type"},
      {R"({"response_format": {}})", "response_format.type"},
      {R"({"response_format": {"type": "json_schema"}})", "response_format.schema"},
      {R"({"response_format": {"type": "json_schema", "json_schema": {}}})",
       "response_format.json_schema.schema"},
      {R"({"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}})",
       "response_format.json_schema.schema"},
      {R"({"guided_json": "{"})", "guided_json"},
      {R"({"guided_json": "[]"})", "guided_json"},
      {R"({"guided_json": []})", "guided_json"},
      {R"({"guided_regex": 1})", "guided_regex"},
      {R"({"guided_choice": []})", "guided_choice"},
      {R"({"guided_choice": [1]})", "guided_choice"},
      {R"({"guided_choice": [""]})", "guided_choice"},
      {R"({"guided_grammar": {}})", "guided_grammar"},
      {R"({"structured_outputs": {"json": 1}})", "structured_outputs.json"},
      {R"({"structured_outputs": {"json_object": 1}})", "structured_outputs.json_object"},
      {R"({"structured_outputs": {"structural_tag": "x"}})", "structured_outputs.structural_tag"},
      {R"({"structured_outputs": {"regex": "a", "grammar": "b"}})", "structured_outputs.grammar"},
      {R"({"guided_regex": "a", "guided_choice": ["b"]})", "guided_choice"},
      {R"({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}})",
       "structured_outputs"}};
  for (const auto& [text, param] : cases) EXPECT_EQ(Read(text), std::string("!") + param) << text;
}

}  // namespace
}  // namespace retroinfer::gateway
