#include "kv_store_service/persistence/segment_codec.h"

#include <gtest/gtest.h>

#include <functional>

#include "common/hash/sha256.h"
#include "tests/kv_store_service/persistence/sample_segments.h"

namespace retroinfer::kvstore {
namespace {

using testing::At;
using testing::MakeSample;

ManifestRow SampleManifest() {
  ManifestRow row;
  row.record = MakeSample(1).record;
  row.payload_id = 77;
  row.chunk_bytes = 4096;
  row.index_crc = 0x12345678;
  return row;
}

ManifestRow GeneratedManifest() {
  ManifestRow row = SampleManifest();
  row.record.provenance = common::Provenance{common::SaltHash("made by"),
                                             common::SaltHash("sources"), common::SaltHash("text")};
  return row;
}

ContextRecord SampleContext() {
  ContextRecord context;
  context.context_name = "name";
  context.salt_hash = common::SaltHash("salt");
  context.root = MakeSample(1).record.root;
  context.segments = {MakeSample(1).name(), MakeSample(2).name()};
  context.sink_token_ids = {1, 2, 3, 4};
  context.num_tokens = 2052;
  context.pinned = true;
  context.created = At(3);
  return context;
}

TEST(SegmentCodecTest, RowsRoundTrip) {
  const ManifestRow manifest = SampleManifest();
  const SegmentName name = manifest.record.name;
  const auto manifest_again = DecodeManifest(name.view(), EncodeManifest(manifest));
  ASSERT_TRUE(manifest_again.ok());
  EXPECT_EQ(manifest_again->record, manifest.record);
  EXPECT_EQ(manifest_again->payload_id, 77u);
  EXPECT_EQ(manifest_again->num_chunks(), 2u);
  EXPECT_EQ(manifest_again->index_crc, 0x12345678u);

  const ManifestRow generated = GeneratedManifest();
  const auto generated_again = DecodeManifest(name.view(), EncodeManifest(generated));
  ASSERT_TRUE(generated_again.ok());
  EXPECT_EQ(generated_again->record, generated.record);
  EXPECT_EQ(generated_again->index_crc, 0x12345678u);

  const IndexRow index = {{1, -2, 3}, {4, 5}};
  const PartsRow parts{.payload_id = 9, .part_bytes = 4096, .part_crcs = {7, 8, 9}};
  const auto parts_again = DecodeParts(PartsKey(name), EncodeParts(name, parts));
  ASSERT_TRUE(parts_again.ok());
  EXPECT_EQ(parts_again->payload_id, 9u);
  EXPECT_EQ(parts_again->part_bytes, 4096u);
  EXPECT_EQ(parts_again->part_crcs, parts.part_crcs);
  const auto index_again = DecodeIndex(name.view(), EncodeIndex(name, index));
  ASSERT_TRUE(index_again.ok());
  EXPECT_EQ(index_again->token_ids, index.token_ids);
  EXPECT_EQ(index_again->chunk_crcs, index.chunk_crcs);

  const ContextRecord context = SampleContext();
  const std::string context_key = ContextKey(context.salt_hash, context.context_name);
  EXPECT_EQ(*DecodeContext(context_key, EncodeContext(context)), context);

  EXPECT_EQ(*DecodeUsage(name.view(), EncodeUsage(name, At(9))), At(9));
  EXPECT_EQ(*DecodePending(PayloadIdKey(5), EncodePending(5, 12)), 12u);
  const auto aside =
      DecodeQuarantine(PayloadIdKey(5), EncodeQuarantine({name, 5, 12, At(1), "reason"}));
  ASSERT_TRUE(aside.ok());
  EXPECT_EQ(aside->name, name);
  EXPECT_EQ(aside->reason, "reason");
}

TEST(SegmentCodecTest, KeysSortByTheirNumbers) {
  EXPECT_LT(PayloadIdKey(255), PayloadIdKey(256));
  EXPECT_LT(ChunkKey(1, 70000), ChunkKey(2, 0));
  EXPECT_EQ(*ParsePayloadIdKey(PayloadIdKey(0x123456789abcdef0)), 0x123456789abcdef0u);
  EXPECT_FALSE(ParsePayloadIdKey("short").ok());
}

// Every bit of a row and of its key matters.
void ExpectEveryFlipIsNoticed(std::string key, std::string value,
                              const std::function<bool(std::string_view, std::string_view)>& ok) {
  ASSERT_TRUE(ok(key, value));
  for (std::string* bytes : {&key, &value}) {
    for (size_t bit = 0; bit < bytes->size() * 8; ++bit) {
      (*bytes)[bit / 8] ^= static_cast<char>(1 << bit % 8);
      EXPECT_FALSE(ok(key, value)) << bit;
      (*bytes)[bit / 8] ^= static_cast<char>(1 << bit % 8);
    }
  }
  for (size_t size = 0; size < value.size(); ++size) {
    EXPECT_FALSE(ok(key, std::string_view(value).substr(0, size)));
  }
}

TEST(SegmentCodecTest, EverySingleBitFlipAndCutIsNoticed) {
  const SegmentName name = MakeSample(1).name();
  const std::string key(name.view());
  const ContextRecord context = SampleContext();
  ExpectEveryFlipIsNoticed(key, EncodeManifest(SampleManifest()),
                           [](auto k, auto v) { return DecodeManifest(k, v).ok(); });
  ExpectEveryFlipIsNoticed(key, EncodeManifest(GeneratedManifest()),
                           [](auto k, auto v) { return DecodeManifest(k, v).ok(); });
  ExpectEveryFlipIsNoticed(PartsKey(name), EncodeParts(name, {9, 4096, {7, 8}}),
                           [](auto k, auto v) { return DecodeParts(k, v).ok(); });
  ExpectEveryFlipIsNoticed(key, EncodeIndex(name, {{1, 2, 3}, {4}}),
                           [](auto k, auto v) { return DecodeIndex(k, v).ok(); });
  ExpectEveryFlipIsNoticed(ContextKey(context.salt_hash, context.context_name),
                           EncodeContext(context),
                           [](auto k, auto v) { return DecodeContext(k, v).ok(); });
  ExpectEveryFlipIsNoticed(key, EncodeUsage(name, At(1)),
                           [](auto k, auto v) { return DecodeUsage(k, v).ok(); });
  ExpectEveryFlipIsNoticed(PayloadIdKey(3), EncodePending(3, 4),
                           [](auto k, auto v) { return DecodePending(k, v).ok(); });
  ExpectEveryFlipIsNoticed(PayloadIdKey(3), EncodeQuarantine({name, 3, 4, At(1), "why"}),
                           [](auto k, auto v) { return DecodeQuarantine(k, v).ok(); });
}

// Digest of the row that programs wrote before there was generated KV: folders have such rows.
TEST(SegmentCodecTest, ARowOfAnExactSegmentStaysAsItWas) {
  common::Sha256 digest("row");
  digest.Add(EncodeManifest(SampleManifest()));
  EXPECT_EQ(digest.Finish().ToHex(),
            "3683841056e82d8f67428ca5b9921fc2216ef5343ef260a80d28d4c1388cfdc0");
}

TEST(SegmentCodecTest, ARowOfAnotherKindIsRefused) {
  const SegmentName name = MakeSample(1).name();
  EXPECT_FALSE(DecodeIndex(name.view(), EncodeUsage(name, At(1))).ok());
  EXPECT_FALSE(DecodeUsage(name.view(), EncodeManifest(SampleManifest())).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
