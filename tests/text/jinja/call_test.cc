#include "text/jinja/call.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

TEST(CallTest, BindsByPlaceAndByName) {
  const Arguments arguments = {{Value(Int{1})}, {{"b", Value(Int{2})}}};
  const auto bound = BoundArguments::Bind("f", arguments, {"a", "b", "c"}, 1);
  ASSERT_TRUE(bound.ok());
  EXPECT_EQ(*bound->IntOr(0, 0), 1);
  EXPECT_EQ(*bound->IntOr(1, 0), 2);
  EXPECT_EQ(*bound->IntOr(2, 5), 5);
  EXPECT_TRUE(bound->TruthOr(2, true));
  EXPECT_EQ(bound->TextOr(0, "").status().message(), "f(): 'a' must be a string, not 'int'");
}

TEST(CallTest, WhatDoesNotFitIsRefused) {
  const Value one(Int{1});
  const auto error = [](const Arguments& arguments) {
    return std::string(BoundArguments::Bind("f", arguments, {"a"}, 1).status().message());
  };
  EXPECT_EQ(error({{one, one}, {}}), "f() takes 1 arguments, not 2");
  EXPECT_EQ(error({{one}, {{"a", one}}}), "f() got the argument 'a' twice");
  EXPECT_EQ(error({{}, {{"z", one}}}), "f() has no argument 'z'");
  EXPECT_EQ(error({}), "f() needs the argument 'a'");
}

}  // namespace
}  // namespace retroinfer::jinja
