#include "text/jinja/workspace.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(WorkspaceTest, Limits) {
  Workspace workspace({.steps_max = 10, .memory_bytes_max = 1000}, absl::UnixEpoch(),
                      absl::UTCTimeZone());
  EXPECT_TRUE(workspace.Spend(10).ok());
  EXPECT_THAT(std::string(workspace.Spend(1).message()), HasSubstr("more than the 10 steps"));
  EXPECT_TRUE(absl::IsResourceExhausted(workspace.CheckRoom(1001)));
}

TEST(WorkspaceTest, EqualKeysAreOne) {
  Workspace workspace({}, absl::UnixEpoch(), absl::UTCTimeZone());
  const Value dict = *workspace.MakeDict({{Value(Int{1}), Value(Int{1})},
                                          {*workspace.String("a"), Value(Int{2})},
                                          {Value(true), Value(Int{3})},
                                          {*workspace.String("a"), Value(Int{4})}});
  ASSERT_EQ(dict.AsDict()->entries.size(), 2u);
  EXPECT_TRUE(dict.AsDict()->entries[0].second.AsInt() == Int{3});
  EXPECT_TRUE(dict.AsDict()->entries[1].second.AsInt() == Int{4});
}

TEST(WorkspaceTest, ValuesThatAreGoneCountNoLonger) {
  EXPECT_EQ(Render("{% for i in range(1000) %}{% set x = 'y' * 100000 %}{% endfor %}ok", "{}",
                   {.memory_bytes_max = 1'000'000}),
            "ok");
}

}  // namespace
}  // namespace retroinfer::jinja
