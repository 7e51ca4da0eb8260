#include "text/constraint/token_trie.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace retroinfer::constraint {
namespace {

using testing::ElementsAre;

TEST(TokenTrieTest, NodesAreInDepthFirstOrder) {
  const TokenTrie trie({{"b", 1}, {"ab", 2}, {"a", 3}, {"abc", 4}, {"ab", 5}});
  ASSERT_EQ(trie.num_nodes(), 4u);
  EXPECT_EQ(trie.node(0).byte, 'a');
  EXPECT_EQ(trie.node(0).behind, 3u);
  EXPECT_EQ(trie.node(1).depth, 2u);
  EXPECT_THAT(trie.TokensOf(1), ElementsAre(2, 5));
  EXPECT_THAT(trie.TokensOf(3), ElementsAre(1));
  EXPECT_THAT(trie.TokensBelow(0), ElementsAre(3, 2, 5, 4));
  EXPECT_EQ(trie.depth_max(), 3u);
  EXPECT_EQ(TokenTrie().num_nodes(), 0u);
}

TEST(TokenTrieTest, EachTokenIsAtItsPath) {
  std::mt19937 random(3);
  std::map<int32_t, std::string> tokens;
  std::vector<TokenTrie::Entry> entries;
  for (int32_t id = 0; id < 500; ++id) {
    std::string bytes;
    for (size_t i = 1 + random() % 5; i > 0; --i) {
      bytes.push_back(static_cast<char>(250 + random() % 6));
    }
    tokens[id] = bytes;
  }
  for (const auto& [id, bytes] : tokens) entries.emplace_back(bytes, id);
  const TokenTrie trie(entries);
  std::string path;
  size_t found = 0;
  for (size_t i = 0; i < trie.num_nodes(); ++i) {
    path.resize(trie.node(i).depth - 1U);
    path.push_back(static_cast<char>(trie.node(i).byte));
    for (const int32_t id : trie.TokensOf(i)) {
      EXPECT_EQ(tokens.at(id), path);
      ++found;
    }
    size_t below = 0;
    for (const auto& [id, bytes] : tokens) below += bytes.starts_with(path) ? 1 : 0;
    EXPECT_EQ(trie.TokensBelow(i).size(), below);
  }
  EXPECT_EQ(found, tokens.size());
}

}  // namespace
}  // namespace retroinfer::constraint
