#include "http_gateway/api/callable_functions.h"

#include <gtest/gtest.h>

namespace retroinfer::gateway {
namespace {

TEST(CallableFunctions, KnowsWhatTextsOfParametersMean) {
  ToolFunction function{.name = "f"};
  function.parameters = Json::parse(R"({"properties": {
      "s": {"type": "string"}, "n": {"type": "integer"}, "ns": {"type": ["string", "null"]},
      "any": {}, "o": {"type": "object", "properties": {}}, "e": {"enum": ["a", "b"]},
      "e3": {"enum": [1, "b"]}, "c": {"const": 5}, "x": {"anyOf": [{"type": "string"}, {"type": "null"}]},
      "deep": {"anyOf": [{"oneOf": [{"type": "number"}]}]}, "bad": 5, "odd": {"type": 3}}})");
  const CallableFunctions functions({function});
  EXPECT_TRUE(functions.Has("f"));
  EXPECT_FALSE(functions.Has("g"));
  const std::pair<const char*, ParameterKind> cases[] = {{"s", ParameterKind::kString},
                                                         {"n", ParameterKind::kJson},
                                                         {"ns", ParameterKind::kNullableString},
                                                         {"any", ParameterKind::kJson},
                                                         {"o", ParameterKind::kJson},
                                                         {"e", ParameterKind::kString},
                                                         {"e3", ParameterKind::kString},
                                                         {"c", ParameterKind::kJson},
                                                         {"x", ParameterKind::kNullableString},
                                                         {"deep", ParameterKind::kJson},
                                                         {"bad", ParameterKind::kJson},
                                                         {"odd", ParameterKind::kJson},
                                                         {"unknown", ParameterKind::kString}};
  for (const auto& [name, kind] : cases) EXPECT_EQ(functions.KindOf("f", name), kind) << name;
}

TEST(CallableFunctions, SchemasMayBeAnything) {
  for (const char* schema : {"null", "5", "{}", R"({"properties": []})"}) {
    ToolFunction function{.name = "f"};
    function.parameters = Json::parse(schema);
    EXPECT_TRUE(CallableFunctions({function}).Has("f")) << schema;
  }
  EXPECT_TRUE(CallableFunctions().empty());
}

}  // namespace
}  // namespace retroinfer::gateway
