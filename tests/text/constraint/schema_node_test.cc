#include "text/constraint/schema_node.h"

#include <gtest/gtest.h>

namespace retroinfer::constraint {
namespace {

common::JsonDocument Parsed(std::string_view text) {
  auto document = common::JsonDocument::Parse(text, {});
  EXPECT_TRUE(document.ok()) << document.status();
  return *std::move(document);
}

SchemaSet SetOf(const common::JsonDocument& document, std::string_view pointer) {
  return {{document.root(), std::string(pointer)}};
}

TEST(SchemaNodeTest, TypesOfValues) {
  const auto type = [](std::string_view text) { return TypeOf(Parsed(text).root()); };
  EXPECT_EQ(type("null"), kNullType);
  EXPECT_EQ(type("true"), kBooleanType);
  EXPECT_EQ(type("3"), kIntegerType);
  EXPECT_EQ(type("3.0"), kIntegerType);
  EXPECT_EQ(type("3.5"), kFractionType);
  EXPECT_EQ(type("\"\""), kStringType);
  EXPECT_EQ(type("[]"), kArrayType);
  EXPECT_EQ(type("{}"), kObjectType);
}

TEST(SchemaNodeTest, APropertyFulfilsWhatTheOtherSchemaSaysOfOthers) {
  const common::JsonDocument any = Parsed("{}");
  ObjectDemands into = {.properties = {{"a", SetOf(any, "#/a")}},
                        .required = {"a"},
                        .additional = SetOf(any, "#/rest1")};
  const ObjectDemands from = {.properties = {{"a", SetOf(any, "#/a2")}, {"b", SetOf(any, "#/b")}},
                              .required = {"a", "b"},
                              .additional = SetOf(any, "#/rest2"),
                              .min_properties = 2,
                              .max_properties = 5};
  Conjoin(from, into);
  const auto pointers = [](const SchemaSet& set) {
    std::vector<std::string> names;
    for (const SchemaRef& ref : set) names.push_back(ref.pointer);
    return names;
  };
  using Names = std::vector<std::string>;
  ASSERT_EQ(into.properties.size(), 2u);
  EXPECT_EQ(pointers(into.properties[0].second), (Names{"#/a", "#/a2"}));
  EXPECT_EQ(pointers(into.properties[1].second), (Names{"#/rest1", "#/b"}));
  EXPECT_EQ(pointers(into.additional), (Names{"#/rest1", "#/rest2"}));
  EXPECT_EQ(into.required, (Names{"a", "b"}));
  EXPECT_EQ(into.min_properties, 2u);
  EXPECT_EQ(into.max_properties, 5u);
}

TEST(SchemaNodeTest, ItemsBehindAShorterPrefixCount) {
  const common::JsonDocument any = Parsed("{}");
  ArrayDemands into = {
      .prefix = {SetOf(any, "#/0")}, .items = SetOf(any, "#/items"), .max_items = 9};
  Conjoin(ArrayDemands{.prefix = {{}, SetOf(any, "#/1")}, .min_items = 1, .max_items = 4}, into);
  ASSERT_EQ(into.prefix.size(), 2u);
  EXPECT_EQ(into.prefix[0].size(), 1u);
  ASSERT_EQ(into.prefix[1].size(), 2u);
  EXPECT_EQ(into.prefix[1][0].pointer, "#/items");
  EXPECT_EQ(into.prefix[1][1].pointer, "#/1");
  EXPECT_EQ(into.min_items, 1u);
  EXPECT_EQ(into.max_items, 4u);
}

TEST(SchemaNodeTest, TheTighterBoundWins) {
  NumberDemands number;
  RaiseMin({*Decimal::Parse("1"), false}, number);
  RaiseMin({*Decimal::Parse("1"), true}, number);
  RaiseMin({*Decimal::Parse("0.5"), false}, number);
  EXPECT_EQ(number.min->value.whole, "1");
  EXPECT_TRUE(number.min->is_exclusive);
  LowerMax({*Decimal::Parse("9"), true}, number);
  LowerMax({*Decimal::Parse("9"), false}, number);
  LowerMax({*Decimal::Parse("8.5"), false}, number);
  EXPECT_EQ(number.max->value.fraction, "5");
  EXPECT_FALSE(number.max->is_exclusive);
}

TEST(SchemaNodeTest, ListedValuesAreThoseOfBoth) {
  const common::JsonDocument first = Parsed(R"([1, "a", {"k": 1, "l": 2}])");
  const common::JsonDocument second = Parsed(R"([{"l": 2, "k": 1.0}, "b", 1.0])");
  const auto values = [](const common::JsonDocument& document) {
    std::vector<common::JsonValue> list;
    for (const common::JsonValue value : document.root().Elements()) list.push_back(value);
    return list;
  };
  SchemaNode node;
  Conjoin(values(first), node);
  Conjoin(values(second), node);
  ASSERT_EQ(node.values->size(), 2u);
  EXPECT_EQ((*node.values)[0].Text(), "1");
  EXPECT_TRUE((*node.values)[1].IsObject());
}

}  // namespace
}  // namespace retroinfer::constraint
