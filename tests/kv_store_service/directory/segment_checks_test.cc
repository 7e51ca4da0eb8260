#include "kv_store_service/directory/segment_checks.h"

#include <gtest/gtest.h>

#include "tests/kv_store_service/named_chain.h"
#include "tests/kv_store_service/prompt_text.h"

namespace retroinfer::kvstore {
namespace {

TEST(SegmentChecksTest, TokensAndPositions) {
  EXPECT_TRUE(CheckTokens(1024).ok());
  EXPECT_TRUE(CheckTokens(8192).ok());
  EXPECT_TRUE(CheckTokens(1).ok());
  EXPECT_TRUE(CheckTokens(64).ok());
  for (const uint32_t tokens : {0u, 65u, 1023u, 9216u, UINT32_MAX}) {
    EXPECT_FALSE(CheckTokens(tokens).ok());
  }
  EXPECT_TRUE(CheckTokenBegin(4, 1024).ok());
  EXPECT_TRUE(CheckTokenBegin(4 + 1024, 8192).ok());
  EXPECT_TRUE(CheckTokenBegin(4 + 64, 64).ok());
  EXPECT_TRUE(CheckTokenBegin(4 + 192, 1).ok());
  EXPECT_FALSE(CheckTokenBegin(4 + 64, 1024).ok());
  for (const uint64_t begin : {uint64_t{0}, uint64_t{5}, uint64_t{1024}, UINT64_MAX - 1019}) {
    EXPECT_FALSE(CheckTokenBegin(begin, 1024).ok()) << begin;
    EXPECT_FALSE(CheckTokenBegin(begin, 64).ok()) << begin;
  }
  EXPECT_FALSE(CheckCount(0).ok());
  EXPECT_TRUE(CheckCount(65536).ok());
  EXPECT_FALSE(CheckCount(65537).ok());
}

TEST(SegmentChecksTest, ANameFollowsFromParentAndTokens) {
  SegmentIdentity identity = NamedChain({1})[0];
  EXPECT_TRUE(CheckIdentity(identity, 1024).ok());
  EXPECT_FALSE(CheckIdentity(identity, 2048).ok());
  identity.token_ids[5] ^= 1;
  EXPECT_FALSE(CheckIdentity(identity, 1024).ok());
}

TEST(SegmentChecksTest, NamesLeadAndAreAChainWithOrWithoutTokens) {
  ReserveRequest request = NamedRequest(1, NamedChain({1, 2}), 1);
  EXPECT_TRUE(CheckRequest(request).ok());
  request.segments[1].identity->token_ids.clear();
  EXPECT_TRUE(CheckRequest(request).ok());
  request.segments[1].identity->token_ids.resize(1023);
  EXPECT_FALSE(CheckRequest(request).ok());
  request.segments[1].identity->token_ids.clear();
  request.segments[0].identity.reset();
  EXPECT_FALSE(CheckRequest(request).ok());
}

TEST(SegmentChecksTest, AGeneratedNameFollowsAlsoFromHowItWasMade) {
  const PromptText text = PromptText::Of(256);
  SegmentIdentity identity = text.Generated(text.TextAt(0), 0, 64);
  EXPECT_TRUE(CheckIdentity(identity, 64).ok());
  identity.provenance->text = text.TextAt(128);
  EXPECT_FALSE(CheckIdentity(identity, 64).ok());
}

TEST(SegmentChecksTest, NothingExactFollowsGeneratedKv) {
  const PromptText text = PromptText::Of(256);
  const SegmentIdentity first = text.Generated(text.TextAt(0), 0, 64);
  ReserveRequest request{.sequence_id = 1};
  request.segments = {{64, first}, {64, text.Generated(first.name, 64, 64)}};
  EXPECT_TRUE(CheckRequest(request).ok());
  request.segments[1].identity = text.Exact(first.name, 64, 64);
  EXPECT_FALSE(CheckRequest(request).ok());
  request.segments.pop_back();
  request.token_begin = 5;
  EXPECT_FALSE(CheckRequest(request).ok());
}

TEST(SegmentChecksTest, RowsAreInOrder) {
  const PromptText text = PromptText::Of(4096);
  const auto chain = text.Segments(2, 1024);
  ReserveRequest request{.sequence_id = 1};
  request.rows = text.Rows(64, 4000);
  request.rows->segments = {{4 + 1024, 1024, chain[1].name}, {4 + 1024, 2048, chain[0].name}};
  EXPECT_TRUE(CheckRequest(request).ok());
  const auto refuses = [&](auto change) {
    ReserveRequest changed = request;
    change(changed);
    return absl::IsInvalidArgument(CheckRequest(changed));
  };
  EXPECT_TRUE(refuses([](auto& r) { r.segments.push_back({64}); }));
  EXPECT_TRUE(refuses([](auto& r) { r.rows->token_begin = 5; }));
  EXPECT_TRUE(refuses([](auto& r) { r.rows->token_begin = uint64_t{4} + (uint64_t{1} << 50); }));
  EXPECT_TRUE(refuses([](auto& r) { r.rows->texts.clear(); }));
  EXPECT_TRUE(refuses([](auto& r) { r.rows->texts.pop_back(); }));
  EXPECT_TRUE(refuses([](auto& r) { r.rows->texts.resize(r.rows->texts.size() + 2); }));
  EXPECT_TRUE(refuses([](auto& r) {
    r.rows->token_ids.resize(kRowTokensMax + 1);
    r.rows->texts.resize(kRowTokensMax / 64 + 1);
  }));
  EXPECT_TRUE(refuses([](auto& r) { r.rows->segments[0].token_begin = 4; }));  // before the rows
  EXPECT_TRUE(refuses([](auto& r) { r.rows->segments[1].token_begin += 64; }));
  EXPECT_TRUE(refuses([](auto& r) { r.rows->segments[1].num_tokens = 64; }));
  EXPECT_TRUE(refuses([](auto& r) { r.rows->segments[1].num_tokens = 1000; }));
  EXPECT_TRUE(refuses([](auto& r) { r.rows->segments[0].token_begin += 1024; }));
  EXPECT_TRUE(refuses([](auto& r) { r.rows->segments.resize(9, r.rows->segments[0]); }));
  request.rows = text.Rows(64, 65);  // nothing but the last token
  EXPECT_TRUE(CheckRequest(request).ok());
}

TEST(SegmentChecksTest, SegmentsThatCannotBeCounted) {
  EXPECT_TRUE(CheckGeometry({32, 8, 128, kBf16Kv}).ok());
  EXPECT_FALSE(CheckGeometry({1024, 1024, 128, kF32Kv}).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
