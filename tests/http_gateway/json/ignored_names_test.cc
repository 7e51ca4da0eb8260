#include "http_gateway/json/ignored_names.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace retroinfer::gateway {
namespace {

TEST(IgnoredNames, HaveEachNameOnce) {
  IgnoredNames names;
  EXPECT_TRUE(names.empty());
  for (const char* const path :
       {"store", "messages[0].audio", "messages[17].audio", "store", "a[1].b[2]", "x1"}) {
    names.Add(path);
  }
  EXPECT_EQ(names.ToString(), "store, messages[].audio, a[].b[], x1");
}

TEST(IgnoredNames, AreBoundedAndFitIntoAHeader) {
  IgnoredNames names;
  names.Add("a\r\nSet-Cookie: x, \xc3\xa9");
  EXPECT_EQ(names.ToString(), "a??Set-Cookie:?x????");
  names.Add(std::string(1000, 'n'));
  EXPECT_EQ(names.names().back().size(), IgnoredNames::kNameBytesMax);
  for (int i = 0; i < 1000; ++i) names.Add(absl::StrCat("n", i));
  EXPECT_EQ(names.names().size(), IgnoredNames::kNamesMax);
  EXPECT_TRUE(names.ToString().ends_with(", ..."));
}

}  // namespace
}  // namespace retroinfer::gateway
