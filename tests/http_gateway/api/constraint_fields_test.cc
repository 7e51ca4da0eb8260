#include "http_gateway/api/constraint_fields.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

absl::Status Read(const std::string& text) {
  const Json body = Json::parse(text);
  absl::StatusOr<Fields> fields = Fields::Of(body);
  return fields.ok() ? ReadConstraint(*fields) : fields.status();
}

TEST(ConstraintFields, RefusesByName) {
  for (const auto& [text, param] :
       {std::pair(R"({"response_format": {"type": "json_schema"}})", "response_format"),
        std::pair(R"({"guided_regex": "a"})", "guided_regex")}) {
    EXPECT_EQ(common::ReasonOf(Read(text)).metadata["param"], param);
  }
  EXPECT_TRUE(Read(R"({"response_format": {"type": "text"}})").ok());
}

}  // namespace
}  // namespace retroinfer::gateway
