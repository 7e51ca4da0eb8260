#include "text/tokenizer/text_normalizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/tokenizer/tokenizer_fixtures.h"

namespace retroinfer {
namespace {

using testing::ElementsAre;

std::string Normalized(const TextNormalizer& normalizer, std::string_view text) {
  std::string out;
  const auto runs = normalizer.Normalize(text, SpecialRuns(text.size(), true), out);
  EXPECT_TRUE(runs.ok() && runs->size() == out.size());
  return out;
}

std::string Marked(SpaceMarkSpec marks, std::string_view text, bool is_first) {
  std::string out;
  TextNormalizer(false, marks).MarkSpaces(text, is_first, out);
  return out;
}

TEST(TextNormalizerTest, WithoutSettingsNothingChanges) {
  const TextNormalizer normalizer(false, {});
  EXPECT_FALSE(normalizer.normalizes());
  EXPECT_FALSE(normalizer.marks_spaces());
  EXPECT_EQ(Normalized(normalizer, " e\u0301 "), " e\u0301 ");
}

TEST(TextNormalizerTest, PutsAMarkBeforeEachTextThatIsThere) {
  const TextNormalizer normalizer(false, {.normalizes_front = true, .normalizes_spaces = true});
  EXPECT_TRUE(normalizer.normalizes());
  EXPECT_EQ(Normalized(normalizer, ""), "");
  EXPECT_EQ(Normalized(normalizer, "a b"), "\u2581a\u2581b");
  EXPECT_EQ(Normalized(normalizer, " a"), "\u2581\u2581a");
  EXPECT_EQ(Normalized(normalizer, "\u2581"), "\u2581\u2581");
}

TEST(TextNormalizerTest, ComposesAndMarks) {
  const TextNormalizer normalizer(true, {.normalizes_spaces = true});
  EXPECT_EQ(Normalized(normalizer, "e\u0301 a"), "\u00e9\u2581a");
}

TEST(TextNormalizerTest, WhatMayBeSpecialMovesWithTheText) {
  SpecialRuns runs;
  runs.Append(2, false);
  runs.Append(1, true);
  runs.Append(1, false);
  std::string out;
  const auto moved = TextNormalizer(false, {.normalizes_front = true, .normalizes_spaces = true})
                         .Normalize("a bc", runs, out);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(out, "\u2581a\u2581bc");
  EXPECT_THAT(moved->runs(), ElementsAre(SpecialRuns::Run{7, false}, SpecialRuns::Run{8, true},
                                         SpecialRuns::Run{9, false}));
}

TEST(TextNormalizerTest, MetaspacePutsAMarkWhereNoneIs) {
  const SpaceMarkSpec each = {.replaces_spaces = true, .front = SpaceMarkSpec::Front::kEach};
  EXPECT_TRUE(TextNormalizer(false, each).marks_spaces());
  EXPECT_EQ(Marked(each, "a b", false), "\u2581a\u2581b");
  EXPECT_EQ(Marked(each, " a", true), "\u2581a");
  EXPECT_EQ(Marked(each, "\u2581a", true), "\u2581a");
  const SpaceMarkSpec first = {.replaces_spaces = true, .front = SpaceMarkSpec::Front::kFirst};
  EXPECT_EQ(Marked(first, "a", true), "\u2581a");
  EXPECT_EQ(Marked(first, "a ", false), "a\u2581");
}

}  // namespace
}  // namespace retroinfer
