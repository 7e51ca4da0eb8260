#include "text/constraint/node_writer.h"

#include <gtest/gtest.h>

namespace retroinfer::constraint {
namespace {

TEST(NodeWriterTest, EqualReadsAreOneNode) {
  NodeWriter writer(100);
  const NodeId a = writer.ReadBytes("xyz", NodeWriter::kReturn);
  EXPECT_EQ(writer.ReadBytes("xyz", NodeWriter::kReturn), a);
  EXPECT_EQ(writer.ReadBytes("", a), a);
  EXPECT_NE(writer.ReadBytes("ayz", NodeWriter::kReturn), a);
  EXPECT_EQ(writer.nodes().size(), 2u + 4u);
}

TEST(NodeWriterTest, DeadEndsSpread) {
  NodeWriter writer(100);
  EXPECT_EQ(writer.ReadBytes("abc", NodeWriter::kDead), NodeWriter::kDead);
  EXPECT_EQ(writer.ReadCharacters({}), NodeWriter::kDead);
  EXPECT_EQ(writer.Split({NodeWriter::kDead, NodeWriter::kDead}), NodeWriter::kDead);
  EXPECT_EQ(writer.Split({NodeWriter::kDead, NodeWriter::kReturn}), NodeWriter::kReturn);
  EXPECT_EQ(writer.Call(0, NodeWriter::kDead), NodeWriter::kDead);
}

TEST(NodeWriterTest, CommonBeginningsAreReadOnce) {
  NodeWriter writer(100);
  const NodeId start =
      writer.ReadOneOf({"prefix one", "prefix two", "prefix", "prefix one"}, NodeWriter::kReturn);
  const Network::Node& first = writer.nodes()[start];
  ASSERT_EQ(first.kind, Network::Kind::kRead);
  EXPECT_EQ(first.count, 1u);
  EXPECT_EQ(writer.edges()[first.begin].first, 'p');
}

TEST(NodeWriterTest, LongTextsInEachOtherTakeNoStack) {
  NodeWriter writer(size_t{1} << 20);
  const std::string long_text(200'000, 'a');
  EXPECT_NE(writer.ReadOneOf({long_text, long_text + "b"}, NodeWriter::kReturn), NodeWriter::kDead);
}

TEST(NodeWriterTest, IsFullAtItsLimit) {
  NodeWriter writer(5);
  EXPECT_NE(writer.ReadBytes("abc", NodeWriter::kReturn), NodeWriter::kDead);
  EXPECT_FALSE(writer.full());
  EXPECT_EQ(writer.ReadBytes("d", NodeWriter::kReturn), NodeWriter::kDead);
  EXPECT_TRUE(writer.full());
  EXPECT_EQ(writer.Announce(), NodeWriter::kDead);
  writer.SetTargets(NodeWriter::kDead, {NodeWriter::kReturn});
  EXPECT_EQ(writer.nodes()[NodeWriter::kDead].count, 0u);
}

}  // namespace
}  // namespace retroinfer::constraint
