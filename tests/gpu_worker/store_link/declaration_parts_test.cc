#include "gpu_worker/store_link/declaration_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/kv/kv_geometry.h"

namespace retroinfer {
namespace {

namespace v1 = kvstore::v1;

SegmentIdentity Identity(uint64_t number, size_t num_tokens) {
  SegmentIdentity identity;
  std::copy_n(reinterpret_cast<const uint8_t*>(&number), sizeof(number),
              identity.name.bytes.begin());
  identity.token_ids.assign(num_tokens, INT32_MAX);
  return identity;
}

// Sequence `id` with one named extent of that id, and one that is not committed.
void AddSequence(ExtentLedger& ledger, uint64_t id, size_t num_tokens = 8) {
  ReserveRequest request{.sequence_id = id};
  request.segments.resize(2);
  const auto first = static_cast<uint32_t>(20 * id);
  ledger.Reserve(request,
                 {{id, first, 10, 8192, false}, {1000000 + id, first + 10, 10, 1024, false}});
  ledger.Commit(id, id, 4, 9, std::make_shared<const SegmentIdentity>(Identity(id, num_tokens)));
}

TEST(DeclarationPartsTest, AnEmptyLedgerIsOnePart) {
  const ExtentLedger ledger;
  DeclarationParts parts(ledger, 1000);
  v1::DeclareSegmentsRequest part;
  ASSERT_TRUE(parts.Next(&part));
  EXPECT_TRUE(part.is_last());
  EXPECT_EQ(part.part(), 0u);
  EXPECT_FALSE(parts.Next(&part));
}

TEST(DeclarationPartsTest, SegmentsComeBeforeTheSequencesThatReferenceThem) {
  ExtentLedger ledger;
  for (uint64_t id = 1; id <= 6; ++id) AddSequence(ledger, id);
  for (uint64_t id : {5, 4, 6}) ledger.Release(id);
  DeclarationParts parts(ledger, 1);  // each element is a part
  v1::DeclareSegmentsRequest part;
  std::vector<uint64_t> referenced, sequences, others;
  for (uint64_t number = 0; parts.Next(&part); ++number) {
    EXPECT_EQ(part.part(), number);
    EXPECT_EQ(part.is_last(), number == 8);
    EXPECT_EQ(part.named_segments_size() + part.sequences_size(), 1);
    for (const auto& segment : part.named_segments()) {
      (segment.is_referenced() ? referenced : others)
          .push_back(segment.extent().extent().extent_id());
      EXPECT_EQ(segment.extent().token_begin(), 4u);
      EXPECT_EQ(segment.extent().extent().num_pages(), 9u);
      EXPECT_TRUE(segment.is_referenced() == sequences.empty());
    }
    for (const auto& sequence : part.sequences()) {
      sequences.push_back(sequence.sequence_id());
      ASSERT_EQ(sequence.extents_size(), 2);
      EXPECT_FALSE(sequence.extents(1).has_token_begin());
      EXPECT_TRUE(others.empty());
    }
  }
  EXPECT_THAT(referenced, testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(sequences, testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(others, testing::ElementsAre(5, 4, 6));  // in the order of their release
  EXPECT_EQ(parts.num_done(), parts.num_elements());
}

TEST(DeclarationPartsTest, GeneratedKvSaysHowItWasMade) {
  SegmentIdentity identity = Identity(1, 64);
  v1::SegmentIdentity exact;
  ToProto(identity, &exact);
  EXPECT_TRUE(exact.made_by().empty() && exact.sources().empty() && exact.text().empty());
  identity.provenance = common::Provenance{common::SaltHash("made by"), common::SaltHash("sources"),
                                           common::SaltHash("text")};
  v1::SegmentIdentity generated;
  ToProto(identity, &generated);
  EXPECT_EQ(generated.made_by(), identity.provenance->made_by.view());
  EXPECT_EQ(generated.sources(), identity.provenance->sources.view());
  EXPECT_EQ(generated.text(), identity.provenance->text.view());
}

// As one message this is more than a store takes.
TEST(DeclarationPartsTest, ALargeArenaIsManySmallMessages) {
  constexpr size_t kPartBytes = 1 << 20;
  constexpr uint64_t kSegments = 2000;
  ExtentLedger ledger;
  for (uint64_t id = 1; id <= kSegments; ++id) AddSequence(ledger, id, 8192);
  DeclarationParts parts(ledger, kPartBytes);
  v1::DeclareSegmentsRequest part;
  size_t bytes = 0;
  size_t num_segments = 0;
  while (parts.Next(&part)) {
    bytes += part.ByteSizeLong();
    num_segments += part.named_segments_size();
    EXPECT_LT(part.ByteSizeLong(), kPartBytes + (50 << 10));
  }
  EXPECT_EQ(num_segments, kSegments);
  EXPECT_GT(bytes, size_t{64} << 20);
}

}  // namespace
}  // namespace retroinfer
