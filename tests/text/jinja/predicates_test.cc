#include "text/jinja/predicates.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

TEST(PredicatesTest, AsJinja) { ExpectGolden("predicates", 14); }

TEST(PredicatesTest, AreFoundByName) {
  EXPECT_NE(FindPredicate("defined"), nullptr);
  EXPECT_NE(FindPredicate(">="), nullptr);
  EXPECT_EQ(FindPredicate("urlize"), nullptr);
}

}  // namespace
}  // namespace retroinfer::jinja
