#include "http_gateway/api/reasoning_splitter.h"

#include <gtest/gtest.h>

#include <string>

namespace retroinfer::gateway {
namespace {

// Fed in pieces of every size, the result must be the same.
void Expect(bool inside, const std::string& text, const std::string& reasoning,
            const std::string& content) {
  for (size_t step = 1; step <= text.size() + 1; ++step) {
    ReasoningSplitter splitter(inside);
    std::string got_reasoning, got_content;
    const auto add = [&](const ReasoningSplitter::Parts& parts) {
      got_reasoning += parts.reasoning;
      got_content += parts.content;
    };
    for (size_t i = 0; i < text.size(); i += step) add(splitter.Append(text.substr(i, step)));
    add(splitter.Finish());
    EXPECT_EQ(got_reasoning, reasoning) << text << " by " << step;
    EXPECT_EQ(got_content, content) << text << " by " << step;
  }
}

TEST(ReasoningSplitter, PartsThoughtsFromTheAnswer) {
  Expect(false, "<think>\nhm, 1 < 2\n</think>\n\nyes\n", "hm, 1 < 2", "yes\n");
  Expect(false, "\n<think>a\n\nb</think>c", "a\n\nb", "c");
  Expect(true, "\nso\n</think>\n\nyes", "so", "yes");
}

TEST(ReasoningSplitter, WithoutThoughtsAllIsContent) {
  Expect(false, "just text", "", "just text");
  Expect(false, "  <thin ice", "", "  <thin ice");
  Expect(false, "a <think>b</think>", "", "a <think>b</think>");
  Expect(false, "<th", "", "<th");
  Expect(false, "", "", "");
}

TEST(ReasoningSplitter, ThoughtsThatDoNotEndAreThoughts) {
  Expect(true, "and on </thi", "and on </thi", "");
  Expect(false, "<think>cut \n", "cut \n", "");
}

TEST(ReasoningSplitter, OnlyTheFirstThoughtsAreThoughts) {
  Expect(false, "<think>a</think>b<think>c</think>", "a", "b<think>c</think>");
}

TEST(ReasoningSplitter, SendsWhatIsClear) {
  ReasoningSplitter splitter(true);
  EXPECT_EQ(splitter.Append("abc").reasoning, "abc");
  EXPECT_EQ(splitter.Append("d</t").reasoning, "d");
  EXPECT_EQ(splitter.Append("x").reasoning, "</tx");
}

}  // namespace
}  // namespace retroinfer::gateway
