#include "kv_store_service/directory/segment_checks.h"

#include <gtest/gtest.h>

#include "tests/kv_store_service/named_chain.h"

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

TEST(SegmentChecksTest, SegmentsThatCannotBeCounted) {
  EXPECT_TRUE(CheckGeometry({32, 8, 128, kBf16Kv}).ok());
  EXPECT_FALSE(CheckGeometry({1024, 1024, 128, kF32Kv}).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
