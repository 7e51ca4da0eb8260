#include "text/constraint/schema_containers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/constraint/constraint_fixtures.h"

namespace retroinfer::constraint {
namespace {

using testing::HasSubstr;

TEST(SchemaContainersTest, RequiredKeysThatAreNotListedComeBehind) {
  const auto constraint = MustCompile(
      JsonSchema(R"({"type": "object", "properties": {"a": {}}, "required": ["z", "a"]})"));
  EXPECT_TRUE(Accepts(*constraint, R"({"a":1,"z":2})"));
  EXPECT_FALSE(Accepts(*constraint, R"({"z":2,"a":1})"));
  EXPECT_FALSE(Accepts(*constraint, R"({"a":1})"));
}

// Nothing is said of others: JSON Schema would allow them.
TEST(SchemaContainersTest, ListedPropertiesAreAllUnlessOthersAreMentioned) {
  const auto closed =
      MustCompile(JsonSchema(R"({"type": "object", "properties": {"a": {"const": 1}}})"));
  EXPECT_TRUE(Accepts(*closed, R"({"a":1})"));
  EXPECT_TRUE(Accepts(*closed, "{}"));
  EXPECT_FALSE(Accepts(*closed, R"({"a":1,"b":3})"));
  const auto open = MustCompile(JsonSchema(
      R"({"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": true})"));
  EXPECT_TRUE(Accepts(*open, R"({"a":1,"b":3})"));
  const auto free = MustCompile(JsonSchema(R"({"type": "object"})"));
  EXPECT_TRUE(Accepts(*free, R"({"b":3})"));
  // Others are needed, or come from another part of the schema.
  const auto counted = MustCompile(
      JsonSchema(R"({"type": "object", "properties": {"a": {"const": 1}}, "minProperties": 2})"));
  EXPECT_TRUE(Accepts(*counted, R"({"a":1,"b":3})"));
  const auto both = MustCompile(JsonSchema(
      R"({"type": "object", "allOf": [{"properties": {"a": {"const": 1}}},
                                      {"properties": {"b": {"const": 2}}}]})"));
  EXPECT_TRUE(Accepts(*both, R"({"a":1,"b":2})"));
  EXPECT_FALSE(Accepts(*both, R"({"a":1,"c":2})"));
}

// As packages write it who mean `minItems`.
TEST(SchemaContainersTest, AKeywordThatNobodyKnowsIsAnAnnotation) {
  const auto constraint =
      MustCompile(JsonSchema(R"({"type": "array", "items": {"const": 1}, "min_items": 1})"));
  EXPECT_TRUE(Accepts(*constraint, "[1]"));
}

TEST(SchemaContainersTest, OtherKeysAreNoListedOnes) {
  const auto constraint = MustCompile(JsonSchema(
      R"({"type": "object", "properties": {"a": {"type": "null"}, "aé": {"type": "null"},
          "": {"type": "null"}}, "additionalProperties": {"type": "integer"}})"));
  EXPECT_TRUE(Accepts(*constraint, R"({"aa":1,"é":2,"aéé":3})"));
  EXPECT_FALSE(Accepts(*constraint, R"({"a":1})"));
  EXPECT_FALSE(Accepts(*constraint, R"({"aé":1})"));
  EXPECT_FALSE(Accepts(*constraint, R"({"":1})"));
  EXPECT_TRUE(Accepts(*constraint, R"({"a":null,"aé":null,"":null,"b":1})"));
}

TEST(SchemaContainersTest, CountsOfMembersAndItems) {
  const auto object = MustCompile(JsonSchema(
      R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2,
          "maxProperties": 2, "additionalProperties": false})"));
  EXPECT_TRUE(Accepts(*object, R"({"a":1,"c":1})"));
  EXPECT_FALSE(Accepts(*object, R"({"c":1})"));
  EXPECT_FALSE(Accepts(*object, R"({"a":1,"b":1,"c":1})"));
  const auto array = MustCompile(
      JsonSchema(R"({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2},
                     "minItems": 3})"));
  EXPECT_TRUE(Accepts(*array, "[1,2,2]"));
  EXPECT_TRUE(Accepts(*array, "[1,2,2,2,2]"));
  EXPECT_FALSE(Accepts(*array, "[1,2]"));
  EXPECT_FALSE(Accepts(*array, "[2,2,2]"));
}

TEST(SchemaContainersTest, DifferentItems) {
  const auto constraint = MustCompile(JsonSchema(
      R"({"type": "array", "uniqueItems": true, "minItems": 2,
          "items": {"enum": [1, 1.0, "a", null], "type": ["integer", "string"]}})"));
  EXPECT_TRUE(Accepts(*constraint, "[\"a\", 1]"));
  EXPECT_FALSE(Accepts(*constraint, "[1,1]"));
  EXPECT_FALSE(Accepts(*constraint, "[1,1.0]"));
  EXPECT_FALSE(Accepts(*constraint, "[1,null]"));
  EXPECT_FALSE(Accepts(*constraint, "[1]"));
}

TEST(SchemaContainersTest, RefusesWhatIsTooLargeOrMixed) {
  EXPECT_THAT(Refusal(JsonSchema(R"({"type": "array", "minItems": 1000000})")),
              HasSubstr("minItems"));
  EXPECT_THAT(Refusal(JsonSchema(R"({"type": "object", "maxProperties": 1000000})")),
              HasSubstr("maxProperties"));
  EXPECT_THAT(Refusal(JsonSchema(R"({"type": "object", "patternProperties": {"a": {}}})")),
              HasSubstr("patternProperties"));
  EXPECT_THAT(Refusal(JsonSchema(R"({"type": "object", "properties": {"a": {}},
                                     "propertyNames": {"pattern": "b"}})")),
              HasSubstr("propertyNames"));
}

}  // namespace
}  // namespace retroinfer::constraint
