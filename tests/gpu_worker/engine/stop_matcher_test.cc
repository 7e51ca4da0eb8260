#include "gpu_worker/engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace retroinfer {
namespace {

TEST(StopMatcher, WithoutStringsEverythingPasses) {
  StopMatcher matcher({});
  std::string out;
  EXPECT_EQ(matcher.Scan("abc", true, &out), -1);
  EXPECT_EQ(out, "abc");
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBeAStop) {
  StopMatcher matcher({"END"});
  std::string out;
  EXPECT_EQ(matcher.Scan("xE", true, &out), -1);
  EXPECT_EQ(out, "x");
  EXPECT_EQ(matcher.Scan("Ny", true, &out), -1);
  EXPECT_EQ(out, "xENy");
  EXPECT_EQ(matcher.Scan("EEN", true, &out), -1);
  EXPECT_EQ(out, "xENyE");
  EXPECT_EQ(matcher.Scan("D and more", true, &out), 0);
  EXPECT_EQ(out, "xENyE");
}

TEST(StopMatcher, FlushGivesWhatWasHeldBack) {
  StopMatcher matcher({"\n\nUser:"});
  std::string out;
  EXPECT_EQ(matcher.Scan("hi\n\nUse", true, &out), -1);
  EXPECT_EQ(out, "hi");
  matcher.Flush(&out);
  EXPECT_EQ(out, "hi\n\nUse");
}

TEST(StopMatcher, TheOneThatEndsFirstWinsThenTheLongest) {
  std::string out;
  EXPECT_EQ(StopMatcher({"abcd", "bc"}).Scan("abcd", true, &out), 1);
  EXPECT_EQ(out, "a");
  out.clear();
  EXPECT_EQ(StopMatcher({"bc", "abc"}).Scan("xabc", true, &out), 1);
  EXPECT_EQ(out, "x");
}

TEST(StopMatcher, AMatchThatMayNotStopIsText) {
  StopMatcher matcher({"aa"});
  std::string out;
  EXPECT_EQ(matcher.Scan("baa", false, &out), -1);
  EXPECT_EQ(out, "ba");  // the second a may begin another one
  EXPECT_EQ(matcher.Scan("a", true, &out), 0);
  EXPECT_EQ(out, "ba");
}

// What the contract says, without any cleverness: whole text, all positions.
struct NaiveResult {
  int stop = -1;
  std::string out;
};
NaiveResult Naive(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int best = -1;
    for (size_t i = 0; i < stops.size(); ++i) {
      const size_t n = stops[i].size();
      if (n > end || text.compare(end - n, n, stops[i]) != 0) continue;
      if (best < 0 || n > stops[best].size()) best = static_cast<int>(i);
    }
    if (best >= 0) return {best, text.substr(0, end - stops[best].size())};
  }
  return {-1, text};
}

TEST(StopMatcher, AgreesWithTheNaiveSearchOnRandomText) {
  const unsigned seed = 20260120;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto random_text = [&random](size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) text.push_back(static_cast<char>('a' + random() % 2));
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = 0; i < 1 + random() % 3; ++i) stops.push_back(random_text(1 + random() % 8));
    const std::string text = random_text(random() % 40);
    const NaiveResult expected = Naive(stops, text);

    StopMatcher matcher(stops);
    std::string out;
    int stop = -1;
    for (size_t at = 0; at < text.size() && stop < 0;) {
      const size_t piece = 1 + random() % 5;
      stop = matcher.Scan(std::string_view(text).substr(at, piece), true, &out);
      at += piece;
    }
    if (stop < 0) matcher.Flush(&out);
    matches += stop >= 0;
    ASSERT_EQ(out, expected.out) << text;
    ASSERT_EQ(stop < 0, expected.stop < 0) << text;
    if (stop >= 0) {
      ASSERT_EQ(stops[stop], stops[expected.stop]) << text;
    }
  }
  EXPECT_GT(matches, 5000);
}

}  // namespace
}  // namespace retroinfer
