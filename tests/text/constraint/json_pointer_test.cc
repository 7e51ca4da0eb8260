#include "text/constraint/json_pointer.h"

#include <gtest/gtest.h>

namespace retroinfer::constraint {
namespace {

TEST(JsonPointerTest, Escapes) {
  EXPECT_EQ(PointerTo("#", "a"), "#/a");
  EXPECT_EQ(PointerTo("#/a", "b/c~d"), "#/a/b~1c~0d");
}

TEST(JsonPointerTest, FollowsMembersAndElements) {
  const auto document =
      common::JsonDocument::Parse(R"({"a": [{"b": 1}, 7], "x/y~": 2, "": 3, "p q": 4})", {});
  ASSERT_TRUE(document.ok());
  const auto value = [&](std::string_view reference) {
    const auto found = FindByPointer(document->root(), reference);
    return found.has_value() ? found->value.Text() : "none";
  };
  EXPECT_EQ(value("#/a/0/b"), "1");
  EXPECT_EQ(value("#/a/1"), "7");
  EXPECT_EQ(value("#/x~1y~0"), "2");
  EXPECT_EQ(value("#/"), "3");
  EXPECT_EQ(value("#/p%20q"), "4");
  EXPECT_EQ(FindByPointer(document->root(), "#/p%20q")->pointer, "#/p q");
  EXPECT_EQ(FindByPointer(document->root(), "#")->pointer, "#");
  for (const char* const lost : {"", "a", "/a", "#a", "#/b", "#/a/2", "#/a/-1", "#/a/x",
                                 "#/a/0/b/c", "#/%2", "#/%zz", "http://x#/a"}) {
    EXPECT_EQ(value(lost), "none") << lost;
  }
}

}  // namespace
}  // namespace retroinfer::constraint
