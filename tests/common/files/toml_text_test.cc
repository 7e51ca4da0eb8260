#include "common/files/toml_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace retroinfer::common {
namespace {

using ::testing::HasSubstr;

TEST(CheckTomlCharacters, LettersOfAllKindsAreInCommentsAndStrings) {
  for (const char* good : {"", "a = 1\r\n", "a = 1 # \xC3\xA9", "\t# \xC3\xA9\n",
                           "a = \"\xC3\xA9\"", "a = '\xC3\xA9' # x", "a = \"\\\"\xC3\xA9\"",
                           "a = 'x\\' # \"", "l = [\"a\", \"\xC3\xA9\"]"}) {
    EXPECT_TRUE(CheckTomlCharacters(good).ok()) << good << ": " << CheckTomlCharacters(good);
  }
}

TEST(CheckTomlCharacters, AndNowhereElse) {
  for (const char* bad : {"\xC3\xA9 = 1", "a = \xC3\xA9", "a = \"x\" \xC3\xA9",
                          "a = 'x\\' \xC3\xA9", "a = \"x\\\\\" \xC3\xA9", "a = \"\x01\"", "# \x7F",
                          "a = \"\"\"\n\xC3\xA9\"\"\"", "a = \"\xC3\xA9\" \nb = \'\'\'x\'\'\'"}) {
    const absl::Status status = CheckTomlCharacters(std::string("\n") + bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("line ")) << bad;
  }
  EXPECT_THAT(std::string(CheckTomlCharacters("a = 1\n\xC3 = 1").message()), HasSubstr("line 2: "));
}

}  // namespace
}  // namespace retroinfer::common
