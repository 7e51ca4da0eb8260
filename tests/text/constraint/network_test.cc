#include "text/constraint/network.h"

#include <gtest/gtest.h>

#include "tests/text/constraint/grammar_texts.h"

namespace retroinfer::constraint {
namespace {

TEST(NetworkTest, BytesOfOneClassAreReadAlike) {
  const Network network = NetworkOf(
      Alternatives({Sequence({Characters({{'a', 'm'}}), Bytes("x")}), Characters({{'h', 'z'}})}));
  EXPECT_EQ(network.ClassOf('a'), network.ClassOf('g'));
  EXPECT_NE(network.ClassOf('g'), network.ClassOf('h'));
  EXPECT_EQ(network.ClassOf('h'), network.ClassOf('m'));
  EXPECT_NE(network.ClassOf('m'), network.ClassOf('n'));
  EXPECT_NE(network.ClassOf('x'), network.ClassOf('w'));
  EXPECT_EQ(network.ClassOf(0), network.ClassOf('A'));
  EXPECT_EQ(network.ClassOf('{'), network.ClassOf(0xFF));
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_LT(network.ClassOf(static_cast<uint8_t>(byte)), network.num_classes());
  }
}

TEST(NetworkTest, AllBytesMayBeClassesOfTheirOwn) {
  std::vector<Network::Edge> edges;
  for (int byte = 0; byte < 256; ++byte) {
    edges.push_back({static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), 0});
  }
  const Network network({{.kind = Network::Kind::kRead, .begin = 0, .count = 256}}, edges, {}, 0);
  EXPECT_EQ(network.num_classes(), 256u);
  EXPECT_EQ(network.ClassOf(255), 255);
  EXPECT_GT(network.memory_bytes(), 256 * sizeof(Network::Edge));
}

}  // namespace
}  // namespace retroinfer::constraint
