#include "text/constraint/invalid_constraint.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::constraint {
namespace {

TEST(InvalidConstraintTest, HasReasonAndPlace) {
  const absl::Status status = InvalidConstraint("#/a", "is wrong");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "#/a: is wrong");
  const common::ErrorReason reason = common::ReasonOf(status);
  EXPECT_EQ(reason.reason, "INVALID_CONSTRAINT");
  EXPECT_EQ(reason.metadata.at("at"), "#/a");
}

TEST(InvalidConstraintTest, WhatStrangersWroteIsCutAndEscaped) {
  const absl::Status status = InvalidConstraint(std::string(10'000, '\n'), "is wrong");
  EXPECT_LT(common::ReasonOf(status).metadata.at("at").size(), 2000u);
  EXPECT_EQ(Shown("a\n\"\xFF"), "a\\n\\\"\\xff");
  EXPECT_EQ(Shown(std::string(100, 'x')), std::string(60, 'x') + "...");
}

}  // namespace
}  // namespace retroinfer::constraint
