#include "text/jinja/errors.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

TEST(ErrorsTest, Kinds) {
  EXPECT_EQ(Error({"a", "b"}), absl::InvalidArgumentError("ab"));
  EXPECT_EQ(Unsupported({"a"}), absl::UnimplementedError("a"));
  EXPECT_EQ(OverLimit({}), absl::ResourceExhaustedError(""));
  EXPECT_EQ(Concat({"x", "", "yz"}), "xyz");
}

}  // namespace
}  // namespace retroinfer::jinja
