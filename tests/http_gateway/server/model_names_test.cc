#include "http_gateway/server/model_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ModelNames, AnswersUnderTheNameThatWasAsked) {
  const ModelNames names({"gpt-4o", "needle", "gpt-4o"});
  EXPECT_EQ(*names.NameFor("", "needle"), "needle");
  EXPECT_EQ(*names.NameFor("needle", "needle"), "needle");
  EXPECT_EQ(*names.NameFor("gpt-4o", "needle"), "gpt-4o");
  EXPECT_THAT(names.List("needle"), ElementsAre("needle", "gpt-4o"));
  const absl::Status other = names.NameFor("gpt-\n5", "needle").status();
  EXPECT_EQ(other.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(common::ReasonOf(other).reason, "MODEL_NOT_FOUND");
  EXPECT_THAT(std::string(other.message()), HasSubstr("'gpt-\\n5' is not served here, 'needle', "));
}

TEST(ModelNames, AStarTakesAnyName) {
  const ModelNames names({"*"});
  EXPECT_EQ(*names.NameFor("claude-sonnet-4-5", "needle"), "claude-sonnet-4-5");
  EXPECT_THAT(names.List("needle"), ElementsAre("needle"));
  EXPECT_FALSE(names.NameFor("a\nb", "needle").ok());
  EXPECT_FALSE(names.NameFor(std::string(ModelNames::kNameBytesMax + 1, 'n'), "needle").ok());
}

}  // namespace
}  // namespace retroinfer::gateway
