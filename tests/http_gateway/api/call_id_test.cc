#include "http_gateway/api/call_id.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/strings/ascii.h"

namespace retroinfer::gateway {
namespace {

bool IsAlphanumeric(const std::string& text) {
  for (const char c : text) {
    if (!absl::ascii_isalnum(c)) return false;
  }
  return true;
}

TEST(CallId, AreLettersAndDigitsAndAllDifferent) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = DrawCallId(ToolForm::kHermes);
    ASSERT_EQ(id.size(), 29U);
    EXPECT_EQ(id.substr(0, 5), "call_");
    EXPECT_TRUE(IsAlphanumeric(id.substr(5))) << id;
    EXPECT_TRUE(seen.insert(id).second) << id;
  }
}

TEST(CallId, AreNineCharactersForMistral) {
  const std::string id = DrawCallId(ToolForm::kMistral);
  EXPECT_EQ(id.size(), 9U);
  EXPECT_TRUE(IsAlphanumeric(id)) << id;
  EXPECT_NE(id, DrawCallId(ToolForm::kMistral));
}

}  // namespace
}  // namespace retroinfer::gateway
