#include "text/constraint/string_format.h"

#include <gtest/gtest.h>

#include "tests/text/constraint/grammar_texts.h"
#include "text/constraint/regex_parser.h"

namespace retroinfer::constraint {
namespace {

void Expect(std::string_view format, const std::vector<std::string>& good,
            const std::vector<std::string>& bad) {
  const auto pattern = PatternOfFormat(format);
  ASSERT_TRUE(pattern.has_value()) << format;
  const auto expression = ParseRegex(*pattern, {}, {});
  ASSERT_TRUE(expression.ok()) << format << expression.status();
  const Network network = NetworkOf(*expression);
  for (const std::string& text : good) EXPECT_TRUE(Has(network, text)) << format << " " << text;
  for (const std::string& text : bad) EXPECT_FALSE(Has(network, text)) << format << " " << text;
}

TEST(StringFormatTest, DatesAndTimes) {
  Expect("date", {"2024-02-29", "2000-02-29", "2023-04-30", "1999-12-31"},
         {"2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01", "2023-1-1", "0000-01-01", ""});
  Expect("time", {"00:00:00Z", "23:59:59.123456+05:30", "12:00:00-08:00"},
         {"24:00:00Z", "12:60:00Z", "12:00Z", "12:00:00", "12:00:00.Z"});
  Expect("date-time", {"2026-11-26T00:06:45Z", "2026-11-26T00:06:45.5+01:00"},
         {"2026-11-26 00:06:45Z", "2026-11-26", "2026-11-26T00:06:45"});
  Expect("duration", {"P1Y2M3DT4H5M6S", "PT1H", "P2W", "P1D", "PT1M30S"},
         {"P", "PT", "P1", "1D", "P1W2D", "P1YT", "PT1H30S"});
}

TEST(StringFormatTest, NamesAndAddresses) {
  Expect("email", {"a@b", "a.b+c@example.org"}, {"a", "@b", "a@", ".a@b", "a..b@c", "a b@c"});
  Expect("hostname", {"a", "a-b.example.org", "1.2"}, {"", "-a", "a-", "a..b", "a_b", ".a"});
  Expect("ipv4", {"0.0.0.0", "127.0.0.1", "255.255.255.255"},
         {"256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"});
  Expect("ipv6", {"::", "::1", "1::", "2001:db8::8a2e:370:7334", "1:2:3:4:5:6:7:8", "1::8"},
         {":", "1:2:3:4:5:6:7", "1::2::3", "12345::", "1:2:3:4:5:6:7:8:9", "g::"});
  Expect("uuid", {"123e4567-e89b-12d3-a456-426614174000"},
         {"123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"});
  Expect("uri", {"https://example.org", "http://a:80/b/c?d=e&f#g", "x://h/%20"},
         {"example.org", "http://", "http:// a", "http://a/%2", "://a"});
}

TEST(StringFormatTest, OthersAreAnnotations) {
  for (const char* const format : {"binary", "password", "path", "json-string", "", "DATE"}) {
    EXPECT_FALSE(PatternOfFormat(format).has_value()) << format;
  }
}

}  // namespace
}  // namespace retroinfer::constraint
