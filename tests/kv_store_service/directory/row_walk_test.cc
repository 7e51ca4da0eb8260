#include "kv_store_service/directory/row_walk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "tests/kv_store_service/prompt_text.h"
#include "tests/kv_store_service/random_seed.h"

namespace retroinfer::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A list of records, looked through from the newest on.
class ListedRows final : public RowSource {
 public:
  RowCandidate& Add(const SegmentIdentity& identity, size_t offset) {
    identities_.push_back(std::make_unique<SegmentIdentity>(identity));
    RowCandidate& added = candidates_.emplace_back();
    added.name = identity.name;
    added.salt_hash = identity.salt_hash;
    added.provenance = identity.provenance;
    added.token_begin = kSinkTokens + offset;
    added.num_tokens = static_cast<uint32_t>(identity.token_ids.size());
    added.token_ids = identities_.back()->token_ids;
    return added;
  }
  std::optional<RowCandidate> Named(const common::SegmentName& name) const override {
    for (const RowCandidate& candidate : candidates_) {
      if (candidate.name == name) return candidate;
    }
    return std::nullopt;
  }
  std::vector<RowCandidate> Children(const common::SegmentName& parent) const override {
    std::vector<RowCandidate> children;
    for (size_t i = candidates_.size(); i-- > 0;) {
      if (identities_[i]->parent == parent && (candidates_[i].provenance.has_value() ||
                                               candidates_[i].num_tokens < kDenseBlockTokens)) {
        children.push_back(candidates_[i]);
      }
    }
    return children;
  }

 private:
  std::vector<std::unique_ptr<SegmentIdentity>> identities_;
  std::vector<RowCandidate> candidates_;
};

class RowWalkTest : public testing::Test {
 protected:
  // Tokens of each piece; negative of generated ones.
  std::vector<int> Walk(const RowsWanted& rows, const char* made_by = "wave") {
    std::optional<common::Hash256> settings;
    if (made_by != nullptr) settings = MadeBy(made_by);
    RowWalk walk(rows, settings, source_);
    std::vector<int> pieces;
    while (const auto piece = walk.Next()) {
      const int tokens = static_cast<int>(piece->num_tokens);
      pieces.push_back(piece->provenance.has_value() ? -tokens : tokens);
    }
    return pieces;
  }
  const PromptText text_ = PromptText::Of(3 * 1024);
  ListedRows source_;
};

TEST_F(RowWalkTest, NothingIsFoundInNothing) {
  EXPECT_THAT(Walk(text_.Rows(0, 1000)), IsEmpty());
  source_.Add(text_.Block(0), 0);
  EXPECT_THAT(Walk(text_.Rows(0, 1)), IsEmpty());  // no token but the last one
}

TEST_F(RowWalkTest, BlocksFollowOneAnotherUpToAGap) {
  for (const size_t offset : {0, 64, 128, 256}) source_.Add(text_.Block(offset), offset);
  EXPECT_THAT(Walk(text_.Rows(0, 1000)), ElementsAre(64, 64, 64));
  EXPECT_THAT(Walk(text_.Rows(64, 1000)), ElementsAre(64, 64));
  EXPECT_THAT(Walk(text_.Rows(256, 1000)), ElementsAre(64));
}

TEST_F(RowWalkTest, NothingGoesPastTheTokensBeforeThePromptsLastOne) {
  for (const size_t offset : {0, 64, 128}) source_.Add(text_.Block(offset), offset);
  EXPECT_THAT(Walk(text_.Rows(0, 128)), ElementsAre(64));
  EXPECT_THAT(Walk(text_.Rows(0, 129)), ElementsAre(64, 64));
}

TEST_F(RowWalkTest, ABlockThatIsNotFullEndsTheWalk) {
  source_.Add(text_.Block(0), 0);
  source_.Add(text_.Block(64, 10), 64);
  source_.Add(text_.Block(64, 20), 64);
  source_.Add(text_.Block(64, 30), 64);
  source_.Add(text_.Branch(64 + 5, 256, 9).Block(64, 25), 64);  // of another text
  EXPECT_THAT(Walk(text_.Rows(0, 64 + 29)), ElementsAre(64, 20));
  EXPECT_THAT(Walk(text_.Rows(0, 1000)), ElementsAre(64, 30));
  source_.Add(text_.Block(64), 64);
  EXPECT_THAT(Walk(text_.Rows(0, 1000)), ElementsAre(64, 64));
}

TEST_F(RowWalkTest, SegmentsOfTheRequestAreLongerThanBlocks) {
  const auto chain = text_.Segments(2, 1024);
  source_.Add(chain[1], 1024);
  for (size_t offset = 0; offset < 1088; offset += 64) source_.Add(text_.Block(offset), offset);
  RowsWanted rows = text_.Rows(960, 3000);
  EXPECT_THAT(Walk(rows), ElementsAre(64, 64));
  rows.segments = {{4 + 1024, 1024, chain[1].name}};
  EXPECT_THAT(Walk(rows), ElementsAre(64, 1024));
  // Not if it does not fit, is another one, or has other tokens.
  EXPECT_THAT(Walk([&] {
                RowsWanted few = text_.Rows(960, 2048);
                few.segments = rows.segments;
                return few;
              }()),
              ElementsAre(64, 64));
  rows.segments[0].num_tokens = 2048;
  EXPECT_THAT(Walk(rows), ElementsAre(64, 64));
  rows.segments[0].num_tokens = 1024;
  rows.token_ids[64 + 700] ^= 1;
  EXPECT_THAT(Walk(rows), ElementsAre(64, 64));
}

TEST_F(RowWalkTest, GeneratedKvLeavesTheTextAndIsFollowedByGeneratedKvOnly) {
  source_.Add(text_.Block(0), 0);
  const SegmentIdentity first = text_.Generated(text_.TextAt(64), 64, 64);
  source_.Add(first, 64);
  source_.Add(text_.Block(128), 128);
  EXPECT_THAT(Walk(text_.Rows(0, 1000)), ElementsAre(64, -64));
  const SegmentIdentity second = text_.Generated(first.name, 128, 40);
  source_.Add(second, 128);
  source_.Add(text_.Generated(text_.TextAt(128), 128, 50), 128);
  EXPECT_THAT(Walk(text_.Rows(0, 1000)), ElementsAre(64, -64, -40));
  // Made under other settings, or none wanted.
  EXPECT_THAT(Walk(text_.Rows(0, 1000), "full"), ElementsAre(64));
  EXPECT_THAT(Walk(text_.Rows(0, 1000), nullptr), ElementsAre(64));
  // Behind generated KV that the request has already.
  RowsWanted rest = text_.Rows(128, 1000);
  rest.generated = first.name;
  EXPECT_THAT(Walk(rest), ElementsAre(-40));
  rest.generated = second.name;
  EXPECT_THAT(Walk(rest), IsEmpty());
}

TEST_F(RowWalkTest, GeneratedKvOfOtherTokensIsNotTaken) {
  const PromptText other = text_.Branch(30, 512, 7);
  source_.Add(other.Generated(text_.TextAt(0), 0, 64), 0);
  EXPECT_THAT(Walk(text_.Rows(0, 1000)), IsEmpty());
  EXPECT_THAT(Walk(other.Rows(0, 500)), ElementsAre(-64));
  // Where the tokens are not known, the name of the text says so.
  source_.Add(other.Generated(text_.TextAt(0), 0, 50), 0).token_ids = {};
  source_.Add(other.Block(0, 40), 0).token_ids = {};
  EXPECT_THAT(Walk(text_.Rows(0, 1000)), IsEmpty());
  source_.Add(text_.Block(0, 40), 0).token_ids = {};
  source_.Add(text_.Generated(text_.TextAt(0), 0, 50), 0).token_ids = {};
  EXPECT_THAT(Walk(text_.Rows(0, 1000)), ElementsAre(-50));
  EXPECT_THAT(Walk(text_.Rows(0, 45)), ElementsAre(40));
}

TEST_F(RowWalkTest, OfEquallyLongOnesGeneratedOnesAreTakenAndThenTheSmallestSources) {
  std::vector<SegmentIdentity> ways;
  for (const char* sources : {"a", "b", "c", "d"}) {
    ways.push_back(text_.Generated(text_.TextAt(0), 0, 64, "wave", sources));
    source_.Add(ways.back(), 0);
  }
  const auto smallest = std::ranges::min(
      ways, {}, [](const SegmentIdentity& way) { return way.provenance->sources; });
  const RowsWanted rows = text_.Rows(0, 200);
  const std::optional<common::Hash256> wave = MadeBy("wave");
  EXPECT_EQ(RowWalk(rows, wave, source_).Next()->name, smallest.name);
  source_.Add(text_.Block(0), 0);
  EXPECT_EQ(RowWalk(rows, wave, source_).Next()->name, smallest.name);
  const std::optional<common::Hash256> full = MadeBy("full");
  EXPECT_EQ(RowWalk(rows, full, source_).Next()->name, text_.TextAt(64));
}

TEST_F(RowWalkTest, AGeneratedSegmentDoesForAnExactOneOfItsText) {
  const SegmentIdentity exact = text_.Segments(1, 1024)[0];
  const SegmentIdentity generated = text_.Generated(text_.TextAt(0), 0, 1024);
  source_.Add(generated, 0);
  source_.Add(text_.Generated(text_.TextAt(0), 0, 64), 0);
  SegmentWanted wanted{1024, exact, text_.TextAt(1024)};
  const auto find = [&](const char* made_by = "wave", uint64_t begin = 4) {
    return FindGenerated(source_, text_.TextAt(0), wanted, begin, MadeBy(made_by));
  };
  ASSERT_TRUE(find().has_value());
  EXPECT_EQ(find()->name, generated.name);
  EXPECT_FALSE(find("full").has_value());
  EXPECT_FALSE(find("wave", 1028).has_value());
  wanted.identity->token_ids[9] ^= 1;
  EXPECT_FALSE(find().has_value());
  wanted.identity->token_ids.clear();
  EXPECT_TRUE(find().has_value());
  wanted.identity->salt_hash = common::SaltHash("another tenant");
  EXPECT_FALSE(find().has_value());
  wanted = {1024, exact, text_.TextAt(960)};
  EXPECT_FALSE(find().has_value());
  wanted = {1024, exact, std::nullopt};
  EXPECT_FALSE(find().has_value());
}

// A record with all the tokens up to its end.
struct Known {
  SegmentIdentity identity;
  size_t offset = 0;
  std::vector<int32_t> history;
};

// The walk, by comparing whole texts.
std::vector<common::SegmentName> NaiveWalk(const PromptText& text, size_t end,
                                           const std::vector<Known>& records,
                                           const RowsWanted& rows) {
  std::vector<common::SegmentName> found;
  std::optional<common::SegmentName> generated;
  size_t offset = 0;
  while (true) {
    const Known* best = nullptr;
    const auto key = [](const Known& k) {
      return std::tuple(
          -static_cast<int>(k.identity.token_ids.size()), !k.identity.provenance.has_value(),
          k.identity.provenance.has_value() ? k.identity.provenance->sources : common::Hash256(),
          k.identity.name);
    };
    for (const Known& k : records) {
      const size_t size = k.identity.token_ids.size();
      if (k.offset != offset || offset + size > end - 1) continue;
      if (!std::ranges::equal(k.history, text.Tokens(0, offset + size))) continue;
      if (k.identity.provenance.has_value()) {
        if (k.identity.provenance->made_by != MadeBy("wave")) continue;
        if (k.identity.parent != generated.value_or(text.TextAt(offset))) continue;
      } else {
        const bool is_listed =
            std::ranges::any_of(rows.segments, [&](const RowsWanted::Segment& segment) {
              return segment.name == k.identity.name && segment.token_begin == 4 + offset;
            });
        if (generated.has_value() || (size > kDenseBlockTokens && !is_listed)) continue;
      }
      if (best == nullptr || key(k) < key(*best)) best = &k;
    }
    if (best == nullptr) return found;
    found.push_back(best->identity.name);
    offset += best->identity.token_ids.size();
    if (best->identity.provenance.has_value()) generated = best->identity.name;
    if (best->identity.token_ids.size() < kDenseBlockTokens) return found;
  }
}

TEST(RowWalkPropertyTest, FindsWhatComparingWholeTextsFinds) {
  std::mt19937 random(TestSeed());
  size_t num_found = 0, num_generated = 0;
  for (int round = 0; round < 200; ++round) {
    // Texts that share beginnings of random lengths.
    std::vector<PromptText> texts = {PromptText::Of(2500)};
    for (int i = 0; i < 3; ++i) {
      texts.push_back(texts[random() % texts.size()].Branch(random() % 2500, 2500, 2 + i));
    }
    std::vector<Known> records;
    std::vector<std::vector<SegmentIdentity>> chains;
    ListedRows source;
    const auto add = [&](const SegmentIdentity& identity, size_t offset, const PromptText& text) {
      for (const Known& k : records) {
        if (k.identity.name == identity.name) return;
      }
      const auto history = text.Tokens(0, offset + identity.token_ids.size());
      records.push_back({identity, offset, {history.begin(), history.end()}});
      source.Add(identity, offset);
    };
    for (const PromptText& text : texts) {
      chains.push_back(text.Segments(2, 1024));
      for (size_t i = 0; i < 2; ++i) {
        if (random() % 3 == 0) add(chains.back()[i], 1024 * i, text);
      }
      const size_t cut = random() % 38 * 64;  // most before it is exact
      for (size_t offset = 0; offset + 64 <= text.size(); offset += 64) {
        if (random() % 32 < (offset < cut ? 31u : 8u)) add(text.Block(offset), offset, text);
        if (random() % 8 == 0) add(text.Block(offset, 1 + random() % 63), offset, text);
      }
      // Generated KV from a random place on, in pieces of random sizes.
      for (int branch = 0; branch < 4; ++branch) {
        size_t offset = branch == 0 ? cut : random() % 38 * 64;
        common::SegmentName parent = text.TextAt(offset);
        for (int piece = 0; piece < 8; ++piece) {
          size_t count = random() % 4 == 0 ? 1 + random() % 63 : 64;
          if (offset % 1024 == 0 && random() % 2 == 0) count = 1024;
          if (offset + count > text.size()) break;
          const auto identity =
              text.Generated(parent, offset, count, random() % 5 == 0 ? "full" : "wave",
                             random() % 2 == 0 ? "x" : "y");
          add(identity, offset, text);
          parent = identity.name;
          offset += count;
          if (count < 64) break;
        }
      }
    }
    for (size_t i = 0; i < texts.size(); ++i) {
      const size_t end = 1 + random() % 2500;
      RowsWanted rows = texts[i].Rows(0, end);
      for (size_t k = 0; k < 2; ++k) {
        rows.segments.push_back({4 + 1024 * k, 1024, chains[i][k].name});
      }
      const std::optional<common::Hash256> wave = MadeBy("wave");
      RowWalk walk(rows, wave, source);
      std::vector<common::SegmentName> found;
      while (const auto piece = walk.Next()) {
        found.push_back(piece->name);
        num_generated += piece->provenance.has_value() ? 1 : 0;
      }
      num_found += found.size();
      ASSERT_EQ(found, NaiveWalk(texts[i], end, records, rows)) << "round " << round;
    }
  }
  EXPECT_GT(num_found, 1000u);
  EXPECT_GT(num_generated, 100u);
}

}  // namespace
}  // namespace retroinfer::kvstore
