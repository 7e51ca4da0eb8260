#include "text/constraint/schema_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::constraint {
namespace {

using testing::HasSubstr;

class SchemaReaderTest : public testing::Test {
 protected:
  absl::StatusOr<SchemaNode> Read(std::string_view text, const Limits& limits = {}) {
    document_ = common::JsonDocument::Parse(text, {});
    EXPECT_TRUE(document_.ok()) << document_.status();
    SchemaReader reader(document_->root(), limits);
    return reader.Read({reader.root()});
  }
  std::string Error(std::string_view text, const Limits& limits = {}) {
    return std::string(Read(text, limits).status().message());
  }

  absl::StatusOr<common::JsonDocument> document_ = absl::InternalError("none");
};

TEST_F(SchemaReaderTest, ReadsTheKeywordsOfEachType) {
  const auto node = Read(R"({"type": ["string", "number"], "minLength": 2.0, "maxLength": 7,
      "pattern": "a", "format": "date", "minimum": 1, "exclusiveMaximum": 3, "multipleOf": 0.5,
      "minItems": 1, "uniqueItems": true, "required": ["a", "a", "b"], "properties": {"a": {}},
      "additionalProperties": false, "title": "t", "$comment": "c", "x-y": 1})");
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(node->types, kStringType | kNumberTypes);
  EXPECT_EQ(node->string.min_length, 2u);
  EXPECT_EQ(node->string.max_length, 7u);
  EXPECT_EQ(node->string.patterns, std::vector<std::string>{"a"});
  EXPECT_EQ(node->string.formats, std::vector<std::string>{"date"});
  EXPECT_TRUE(node->number.max->is_exclusive);
  EXPECT_FALSE(node->number.min->is_exclusive);
  EXPECT_EQ(node->number.multiples_of.size(), 1u);
  EXPECT_TRUE(node->array.is_unique);
  EXPECT_EQ(node->object.required.size(), 2u);
  EXPECT_EQ(node->object.properties[0].second[0].pointer, "#/properties/a");
}

TEST_F(SchemaReaderTest, FollowsReferencesAndAllOf) {
  const auto node = Read(R"({"$ref": "#/$defs/a", "maxLength": 9, "allOf": [{"$ref": "#/$defs/a"},
      {"minLength": 3}], "$defs": {"a": {"type": "string", "$ref": "#/$defs/b"},
      "b": {"maxLength": 5}}})");
  ASSERT_TRUE(node.ok()) << node.status();
  EXPECT_EQ(node->types, kStringType);
  EXPECT_EQ(node->string.min_length, 3u);
  EXPECT_EQ(node->string.max_length, 5u);
}

TEST_F(SchemaReaderTest, ChoicesAreKeptForLater) {
  const auto node = Read(R"({"anyOf": [{}, true], "oneOf": [{"type": "null"}]})");
  ASSERT_TRUE(node.ok());
  ASSERT_EQ(node->choices.size(), 2u);
  EXPECT_FALSE(node->choices[0].is_exclusive);
  EXPECT_EQ(node->choices[0].branches[1].pointer, "#/anyOf/1");
  EXPECT_TRUE(node->choices[1].is_exclusive);
}

TEST_F(SchemaReaderTest, RefusesByName) {
  for (const char* const keyword :
       {"not", "if", "then", "else", "contains", "minContains", "maxContains", "dependencies",
        "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties",
        "$dynamicRef", "$recursiveRef"}) {
    EXPECT_THAT(Error(std::string("{\"") + keyword + "\": {}}"),
                HasSubstr(std::string("\"") + keyword + "\" is not supported"));
  }
  EXPECT_THAT(Error(R"({"multipleOf": 0})"), HasSubstr("greater than 0"));
  EXPECT_THAT(Error(R"({"exclusiveMinimum": true})"), HasSubstr("drafts before 6"));
  EXPECT_THAT(Error(R"({"allOf": []})"), HasSubstr("at least one schema"));
  EXPECT_THAT(Error(R"({"required": [1]})"), HasSubstr("#/required: needs a list of strings"));
  EXPECT_THAT(Error(R"({"maxItems": 1.5})"), HasSubstr("an integer"));
}

TEST_F(SchemaReaderTest, WorkIsBounded) {
  // Each level doubles the readings.
  std::string schema = R"({"$ref": "#/$defs/d0", "$defs": {)";
  for (int i = 0; i < 30; ++i) {
    const std::string next = std::to_string(i + 1);
    schema += "\"d" + std::to_string(i) + R"(": {"allOf": [{"$ref": "#/$defs/d)" + next +
              R"("}, {"$ref": "#/$defs/d)" + next + "\"}]}, ";
  }
  EXPECT_THAT(Error(schema + R"("d30": {}}})"), HasSubstr("more than 65536 readings"));
  std::string chain = R"({"$ref": "#/$defs/d0", "$defs": {)";
  for (int i = 0; i < 1000; ++i) {
    chain +=
        "\"d" + std::to_string(i) + R"(": {"$ref": "#/$defs/d)" + std::to_string(i + 1) + "\"}, ";
  }
  EXPECT_THAT(Error(chain + R"("d1000": {}}})"), HasSubstr("references and allOf in each other"));
}

}  // namespace
}  // namespace retroinfer::constraint
