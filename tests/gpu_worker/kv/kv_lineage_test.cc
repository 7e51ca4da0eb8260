#include "gpu_worker/kv/kv_lineage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace retroinfer {
namespace {

using common::NameGenerated;
using common::NameSegment;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kDenseBelow = 2048;
const common::Hash256 kSettings = common::SaltHash("settings");

std::vector<int32_t> Count(int64_t tokens, int32_t first = 0) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// A sequence of this prompt, with generated tokens behind it.
struct Sequence {
  Sequence(std::vector<int32_t> tokens, std::optional<common::Hash256> made_by,
           int64_t num_generated = 0)
      : prompt(std::move(tokens)), prefix(NamePrefix(prompt, kDenseBelow, "model", "salt")) {
    lineage = KvLineage(prefix, prompt, made_by);
    lineage.SetCached({}, 0);
    for (int64_t i = 0; i < num_generated; ++i) lineage.Append(static_cast<int32_t>(100000 + i));
    for (int64_t i = 0; i < 8; ++i) extents.push_back({.id = 0, .num_tokens = 1024});
  }
  std::vector<NamedBlock> Blocks(size_t segments, int64_t end, int64_t from = 0) const {
    return lineage.Blocks(segments, extents, 4 + static_cast<int64_t>(segments) * 1024, end, from);
  }

  std::vector<int32_t> prompt;
  NamedPrefix prefix;
  KvLineage lineage;
  std::vector<Extent> extents;
};

// Each block has the tokens at its place, and follows the one before.
void ExpectChain(const Sequence& sequence, const std::vector<NamedBlock>& blocks) {
  const common::SegmentName* before = nullptr;
  for (const NamedBlock& block : blocks) {
    const SegmentIdentity& identity = block.identity;
    EXPECT_EQ((block.token_begin - 4) % 64, 0);
    if (before != nullptr) {
      EXPECT_EQ(identity.parent, *before);
    }
    before = &identity.name;
    const auto name = identity.provenance.has_value()
                          ? NameGenerated(identity.parent, identity.token_ids, *identity.provenance)
                          : NameSegment(identity.parent, identity.token_ids);
    EXPECT_EQ(identity.name, name);
    const auto in_prompt = std::min<int64_t>(std::ssize(identity.token_ids),
                                             std::ssize(sequence.prompt) - block.token_begin);
    for (int64_t i = 0; i < in_prompt; ++i) {
      EXPECT_EQ(identity.token_ids[static_cast<size_t>(i)],
                sequence.prompt[static_cast<size_t>(block.token_begin + i)]);
    }
  }
}

TEST(KvLineageTest, NothingHasANameWithoutAPrefix) {
  const KvLineage lineage;
  EXPECT_FALSE(lineage.names_any());
  const std::vector<Extent> extents(1, {.num_tokens = 1024});
  EXPECT_FALSE(lineage.OfSegment(0, extents).has_value());
  EXPECT_THAT(lineage.Blocks(0, extents, 4, 500, 0), IsEmpty());
}

TEST(KvLineageTest, SegmentsOfAPromptAreCalledAsThePrefixSays) {
  const Sequence sequence(Count(3300), std::nullopt);
  ASSERT_THAT(sequence.prefix.names, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sequence.lineage.OfSegment(i, sequence.extents)->name, sequence.prefix.names[i]);
  }
}

TEST(KvLineageTest, ExactBlocksAreCalledByTheirText) {
  const Sequence sequence(Count(1000), std::nullopt);
  const auto blocks = sequence.Blocks(0, 1000);
  ASSERT_THAT(blocks, SizeIs(16));  // 15 whole ones and 36 tokens
  ExpectChain(sequence, blocks);
  for (size_t i = 0; i < 15; ++i) EXPECT_EQ(blocks[i].identity.name, sequence.prefix.texts[i + 1]);
  EXPECT_THAT(blocks[15].identity.token_ids, SizeIs(36));
}

TEST(KvLineageTest, GeneratedTokensHaveNamesOnlyWhereTheSettingsHave) {
  const Sequence nameless(Count(1000), std::nullopt, 300);
  EXPECT_THAT(nameless.Blocks(0, 1200), SizeIs(15));  // those whose rows are all of the prompt
  const Sequence sequence(Count(1000), kSettings, 300);
  const auto blocks = sequence.Blocks(0, 1200);
  ASSERT_THAT(blocks, SizeIs(19));
  ExpectChain(sequence, blocks);
  EXPECT_FALSE(blocks[14].identity.provenance.has_value());
  ASSERT_TRUE(blocks[15].identity.provenance.has_value());
  EXPECT_EQ(blocks[15].identity.provenance->made_by, kSettings);
  // The first generated one follows the text of where it begins.
  EXPECT_EQ(blocks[15].identity.parent, sequence.prefix.texts[15]);
}

// Of a prompt whose last rows are not computed as in longer prompts.
TEST(KvLineageTest, RowsThatOtherPromptsComputeOtherwiseAreNamedByWhereThePromptEnds) {
  const auto blocks = [](int64_t tokens, std::optional<common::Hash256> made_by) {
    Sequence sequence(Count(tokens), made_by);
    sequence.lineage = KvLineage(sequence.prefix, sequence.prompt, made_by, 4 + 128);
    sequence.lineage.SetCached({}, 0);
    EXPECT_EQ(sequence.lineage.exact_end(), 4 + 128);
    return sequence.Blocks(0, tokens);
  };
  ASSERT_THAT(blocks(4 + 150, std::nullopt), SizeIs(2));
  const auto named = blocks(4 + 150, kSettings), other = blocks(4 + 151, kSettings);
  ASSERT_THAT(named, SizeIs(3));
  EXPECT_FALSE(named[1].identity.provenance.has_value());
  EXPECT_TRUE(named[2].identity.provenance.has_value());
  EXPECT_EQ(named[1].identity.name, other[1].identity.name);
  EXPECT_NE(named[2].identity.name, other[2].identity.name);
}

TEST(KvLineageTest, NamesSayWhereThePromptEnded) {
  const Sequence one(Count(1000), kSettings, 300);
  // The same tokens, of which 10 more were prefilled.
  std::vector<int32_t> longer = Count(1000);
  for (int32_t i = 0; i < 10; ++i) longer.push_back(100000 + i);
  Sequence other(longer, kSettings);
  for (int32_t i = 10; i < 300; ++i) other.lineage.Append(100000 + i);
  const auto a = one.Blocks(0, 1200), b = other.Blocks(0, 1200);
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(a[14].identity.name, b[14].identity.name);
  EXPECT_EQ(a[15].identity.token_ids, b[15].identity.token_ids);
  EXPECT_EQ(a[15].identity.provenance->text, b[15].identity.provenance->text);
  EXPECT_NE(a[15].identity.name, b[15].identity.name);
}

// The same tokens behind the same prompt, of which the first 100 are given.
TEST(KvLineageTest, RowsThatShareWhatTheyRetrieveAreOtherRows) {
  const auto of = [](int64_t given, int64_t rows) {
    Sequence sequence(Count(4 + 15 * 64), kSettings, 400);
    if (rows > 1) sequence.lineage.SetRuns(given, rows);
    return sequence.Blocks(0, 1284);
  };
  const auto alone = of(100, 1), eights = of(100, 8), sixteens = of(100, 16), longer = of(130, 8);
  for (const auto& named : {alone, eights, sixteens, longer}) {
    ASSERT_EQ(named.size(), 20u);
    EXPECT_EQ(named[14].identity.name, alone[14].identity.name) << "the prompt's last block";
    EXPECT_TRUE(named[15].identity.provenance.has_value());
    EXPECT_EQ(named[15].identity.provenance->text, alone[15].identity.provenance->text);
  }
  EXPECT_NE(eights[15].identity.name, alone[15].identity.name);
  EXPECT_NE(eights[15].identity.name, sixteens[15].identity.name);
  EXPECT_EQ(eights[15].identity.name, longer[15].identity.name) << "all of it is given";
  EXPECT_NE(eights[16].identity.name, longer[16].identity.name) << "36 and 64 tokens of it are";
  EXPECT_EQ(eights[18].identity.provenance->sources, alone[18].identity.provenance->sources);
}

TEST(KvLineageTest, ABlockIsCalledTheSameHoweverMuchIsAskedForAtATime) {
  const Sequence sequence(Count(1000), kSettings, 300);
  const auto all = sequence.Blocks(0, 1284);
  for (int64_t from = 4; from < 1284; from += 64) {
    const auto rest = sequence.Blocks(0, 1284, from);
    ASSERT_EQ(std::ssize(rest), (1284 - from) / 64);
    EXPECT_EQ(rest.front().identity.name, all[static_cast<size_t>(from / 64)].identity.name);
  }
}

TEST(KvLineageTest, SegmentsOfGeneratedTokensFollowOneAnother) {
  const Sequence sequence(Count(3300), kSettings, 3000);
  const auto mixed = sequence.lineage.OfSegment(3, sequence.extents);
  ASSERT_TRUE(mixed->provenance.has_value());
  EXPECT_EQ(mixed->parent, sequence.prefix.texts[3 * 16]);
  const auto next = sequence.lineage.OfSegment(4, sequence.extents);
  EXPECT_EQ(next->parent, mixed->name);
  const auto blocks = sequence.Blocks(5, 6000);
  ExpectChain(sequence, blocks);
  EXPECT_EQ(blocks.front().identity.parent, next->name);
}

TEST(KvLineageTest, ExactSegmentsOfAShortPromptAreThoseOfALongerOne) {
  const Sequence sequence(Count(1500), std::nullopt, 2000);
  ASSERT_THAT(sequence.prefix.names, IsEmpty());
  const Sequence longer(Count(2100), std::nullopt);
  EXPECT_EQ(sequence.lineage.OfSegment(0, sequence.extents)->name, longer.prefix.names[0]);
  EXPECT_FALSE(sequence.lineage.OfSegment(1, sequence.extents).has_value());
}

// A first turn of 1000 tokens and 300 generated ones; the second one has 200 more.
TEST(KvLineageTest, TheNextTurnGoesOnWhereTheLastOneEnded) {
  const Sequence first(Count(1000), kSettings, 300);
  const auto left = first.Blocks(0, 1299);
  std::vector<int32_t> tokens = first.prompt;
  for (int32_t i = 0; i < 300; ++i) tokens.push_back(100000 + i);
  for (int32_t i = 0; i < 200; ++i) tokens.push_back(7);
  Sequence second(tokens, kSettings, 100);
  std::vector<CachedRun> cached;
  for (const NamedBlock& block : left) {
    CachedRun& run = cached.emplace_back();
    run.extent.num_tokens = static_cast<uint32_t>(block.identity.token_ids.size());
    if (block.identity.provenance.has_value()) run.extent.generated = block.identity.name;
    run.name = block.identity.name;
    run.token_begin = block.token_begin;
  }
  second.lineage.SetCached(cached, 0);
  EXPECT_EQ(second.lineage.exact_end(), 4 + 15 * 64);
  const auto blocks = second.Blocks(0, 1599);
  ExpectChain(second, blocks);
  // Whole ones that were read are there; the one that was not whole is made anew.
  ASSERT_EQ(blocks.front().token_begin, left.back().token_begin);
  EXPECT_EQ(blocks.front().identity.parent, left.back().identity.parent);
  EXPECT_NE(blocks.front().identity.name, left.back().identity.name);
  // Rows behind generated ones are generated, prefilled or not.
  EXPECT_TRUE(blocks[2].identity.provenance.has_value());
  // A segment over all of it is another one than without the cache.
  Sequence cold(tokens, kSettings, 100);
  EXPECT_NE(second.lineage.OfSegment(0, second.extents)->name,
            cold.lineage.OfSegment(0, cold.extents)->name);
  EXPECT_TRUE(second.lineage.OfSegment(0, second.extents)->provenance.has_value());
  EXPECT_FALSE(cold.lineage.OfSegment(0, cold.extents)->provenance.has_value());
}

TEST(KvLineageTest, CachedSegmentsLeadTheChain) {
  Sequence sequence(Count(3300), kSettings);
  std::vector<CachedRun> cached(2);
  for (size_t i = 0; i < 2; ++i) {
    cached[i].extent.num_tokens = 1024;
    cached[i].token_begin = 4 + static_cast<int64_t>(i) * 1024;
    cached[i].name = sequence.prefix.names[i];
  }
  cached[1].extent.generated = cached[1].name = common::SaltHash("generated");
  sequence.lineage.SetCached(cached, 2);
  EXPECT_EQ(sequence.lineage.GeneratedOfCached(), cached[1].name);
  EXPECT_EQ(sequence.lineage.exact_end(), 1028);
  const auto third = sequence.lineage.OfSegment(2, sequence.extents);
  EXPECT_EQ(third->parent, cached[1].name);
  EXPECT_TRUE(third->provenance.has_value());
}

}  // namespace
}  // namespace retroinfer
