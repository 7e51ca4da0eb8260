#include "text/jinja/value.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

using testing::HasSubstr;

TEST(ValueTest, KindsAndDepth) {
  Workspace workspace({}, absl::UnixEpoch(), absl::UTCTimeZone());
  const Value value = *ParseJson(workspace, R"([1, {"a": [true]}, null, 2.5, "s"])");
  EXPECT_EQ(value.depth(), 3);
  EXPECT_FALSE(value.holds_objects());
  const Values& items = value.AsSequence()->items;
  EXPECT_TRUE(items[0].AsInt() == Int{1});
  EXPECT_EQ(items[1].TypeName(), "dict");
  EXPECT_NE(items[1].AsDict()->Find("a"), nullptr);
  EXPECT_EQ(items[1].AsDict()->Find("b"), nullptr);
  EXPECT_TRUE(items[2].is_none());
  EXPECT_EQ(*items[3].AsFloat(), 2.5);
  EXPECT_FALSE(items[4].AsText()->runs()[0].of_template);
  EXPECT_EQ(Value().TypeName(), "Undefined");
  EXPECT_THAT(std::string(Value::Missing({"why"}).UndefinedError().message()), HasSubstr("why"));
}

TEST(ValueTest, MemoryComesBack) {
  const auto meter = std::make_shared<Meter>(100);
  {
    const Charge charge(meter, 60);
    EXPECT_TRUE(meter->HasRoom(40));
    EXPECT_FALSE(meter->HasRoom(41));
  }
  EXPECT_TRUE(meter->HasRoom(100));
}

}  // namespace
}  // namespace retroinfer::jinja
