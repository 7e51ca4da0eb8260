#include "text/constraint/schema_disjoint.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
namespace retroinfer::constraint {
namespace {

bool Disjoint(std::string_view a, std::string_view b) {
  const auto document =
      common::JsonDocument::Parse(absl::StrCat("[", std::string(a), ",", std::string(b), "]"), {});
  EXPECT_TRUE(document.ok()) << document.status();
  const Limits limits;
  SchemaReader reader(document->root(), limits);
  std::vector<SchemaNode> nodes;
  for (const common::JsonValue schema : document->root().Elements()) {
    nodes.push_back(*reader.Read({{schema, absl::StrCat("#/", nodes.size())}}));
  }
  const bool disjoint = *AreDisjoint(nodes[0], nodes[1], reader);
  EXPECT_EQ(*AreDisjoint(nodes[1], nodes[0], reader), disjoint);
  return disjoint;
}

TEST(SchemaDisjointTest, ByType) {
  EXPECT_TRUE(Disjoint(R"({"type": "string"})", R"({"type": ["null", "array"]})"));
  EXPECT_FALSE(Disjoint(R"({"type": "integer"})", R"({"type": "number"})"));
  EXPECT_FALSE(Disjoint("{}", R"({"type": "number"})"));
  EXPECT_TRUE(Disjoint(R"({"enum": [1, 2]})", R"({"type": "string"})"));
}

TEST(SchemaDisjointTest, ByValuesAndBounds) {
  EXPECT_TRUE(Disjoint(R"({"const": "a"})", R"({"enum": ["b", "c"]})"));
  EXPECT_FALSE(Disjoint(R"({"const": "a"})", R"({"enum": ["b", "a"]})"));
  EXPECT_TRUE(Disjoint(R"({"type": "integer", "maximum": 4})",
                       R"({"type": "number", "exclusiveMinimum": 4})"));
  EXPECT_FALSE(
      Disjoint(R"({"type": "integer", "maximum": 4})", R"({"type": "number", "minimum": 4})"));
}

TEST(SchemaDisjointTest, ByARequiredProperty) {
  const char* const cat =
      R"({"type": "object", "properties": {"k": {"const": "cat"}}, "required": ["k"]})";
  const char* const dog =
      R"({"type": "object", "properties": {"k": {"const": "dog"}}, "required": ["k"]})";
  const char* const any_dog = R"({"type": "object", "properties": {"k": {"const": "dog"}}})";
  EXPECT_TRUE(Disjoint(cat, dog));
  EXPECT_FALSE(Disjoint(cat, any_dog));
  EXPECT_TRUE(Disjoint(cat, R"({"type": "object", "additionalProperties": false})"));
  EXPECT_TRUE(Disjoint(
      R"({"type": "object", "required": ["a"], "properties": {"a": )" + std::string(cat) + "}}",
      R"({"type": "object", "required": ["a"], "properties": {"a": )" + std::string(dog) + "}}"));
}

}  // namespace
}  // namespace retroinfer::constraint
