#include "gpu_worker/wave_index/named_prefix.h"

#include <gtest/gtest.h>

#include "common/kv/segment_layout.h"

namespace retroinfer {
namespace {

std::vector<int32_t> Prompt(int64_t length) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>(i * i % 1009));
  return prompt;
}

TEST(NamedPrefixTest, NamesAreTheHashChainOfThePromptsSegments) {
  const std::vector<int32_t> prompt = Prompt(10000);
  const NamedPrefix prefix = NamePrefix(prompt, 8192, "model", "salt");
  ASSERT_EQ(prefix.names.size(), 2u);  // 8192 and 1024 tokens
  const common::Hash256 salt = common::SaltHash("salt");
  const common::SegmentName sink = common::NameSegment(
      common::RootName("model", salt, kSegmentVersion), std::span(prompt).first(4));
  EXPECT_EQ(prefix.salt_hash, salt);
  EXPECT_EQ(prefix.sink_name, sink);
  EXPECT_EQ(prefix.names[0], common::NameSegment(sink, std::span(prompt).subspan(4, 8192)));
  EXPECT_EQ(prefix.names[1],
            common::NameSegment(prefix.names[0], std::span(prompt).subspan(8196, 1024)));
  const SegmentIdentity first = IdentityOf(prefix, prompt, 0);
  EXPECT_EQ(first.parent, sink);
  EXPECT_EQ(first.token_ids.size(), 8192u);
  const SegmentIdentity second = IdentityOf(prefix, prompt, 1);
  EXPECT_EQ(second.name, prefix.names[1]);
  EXPECT_EQ(second.parent, first.name);
  EXPECT_EQ(second.salt_hash, salt);
  EXPECT_EQ(second.token_ids, std::vector<int32_t>(prompt.begin() + 8196, prompt.begin() + 9220));
}

TEST(NamedPrefixTest, PromptsShareTheNamesOfACommonBeginning) {
  std::vector<int32_t> prompt = Prompt(20000);
  const NamedPrefix whole = NamePrefix(prompt, 8192, "model", "");
  const NamedPrefix part = NamePrefix(std::span(prompt).first(17500), 8192, "model", "");
  ASSERT_GE(whole.names.size(), 2u);
  EXPECT_EQ(part.names[0], whole.names[0]);
  EXPECT_EQ(part.names[1], whole.names[1]);
  prompt[8196 + 17] ^= 1;
  const NamedPrefix changed = NamePrefix(prompt, 8192, "model", "");
  EXPECT_EQ(changed.names[0], whole.names[0]);
  EXPECT_NE(changed.names[1], whole.names[1]);
  EXPECT_NE(changed.names[2], whole.names[2]);
}

TEST(NamedPrefixTest, ModelSaltAndSinkChangeEveryName) {
  std::vector<int32_t> prompt = Prompt(9300);
  const NamedPrefix prefix = NamePrefix(prompt, 8192, "model", "salt");
  EXPECT_NE(NamePrefix(prompt, 8192, "other", "salt").names[0], prefix.names[0]);
  EXPECT_NE(NamePrefix(prompt, 8192, "model", "").names[0], prefix.names[0]);
  prompt[3] ^= 1;
  EXPECT_NE(NamePrefix(prompt, 8192, "model", "salt").names[0], prefix.names[0]);
}

TEST(NamedPrefixTest, ShortPromptsHaveNoNames) {
  EXPECT_TRUE(NamePrefix({}, 8192, "model", "").names.empty());
  EXPECT_TRUE(NamePrefix(Prompt(1), 0, "model", "").names.empty());
  EXPECT_TRUE(NamePrefix(Prompt(8191), 8192, "model", "").names.empty());
}

}  // namespace
}  // namespace retroinfer
