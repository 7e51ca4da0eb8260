// The contract of SegmentStorage, over each implementation.
#include "kv_store_service/persistence/segment_storage.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "kv_store_service/persistence/rocksdb_segment_storage.h"
#include "tests/kv_store_service/persistence/sample_segments.h"
#include "tests/support/storage/in_memory_segment_storage.h"

namespace retroinfer::kvstore {
namespace {

using testing::At;
using testing::CheckSample;
using testing::MakeSample;
using testing::PutSample;
using testing::Sample;
using testing::TempFolder;

struct Backend {
  std::string name;
  std::function<std::unique_ptr<SegmentStorage>(const std::string& folder, StorageStageHook hook)>
      open;
};

void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

std::vector<Backend> Backends() {
  return {{"InMemory",
           [](const std::string&, StorageStageHook hook) {
             return MakeInMemorySegmentStorage(std::move(hook));
           }},
          {"RocksDb", [](const std::string& folder, StorageStageHook hook) {
             RocksDbStorageOptions options;
             options.folder = folder;
             options.reserve_bytes = 0;
             options.chunk_bytes = 4096;
             options.on_stage = std::move(hook);
             auto storage = OpenRocksDbSegmentStorage(options);
             EXPECT_TRUE(storage.ok()) << storage.status();
             return *std::move(storage);
           }}};
}

class SegmentStorageTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    storage_ = GetParam().open(folder_.path(), [this](StorageStage stage) {
      stages_.push_back(stage);
      if (on_stage_) on_stage_(stage);
    });
  }

  TempFolder folder_;
  std::vector<StorageStage> stages_;
  std::function<void(StorageStage)> on_stage_;
  std::unique_ptr<SegmentStorage> storage_;
};

INSTANTIATE_TEST_SUITE_P(All, SegmentStorageTest, ::testing::ValuesIn(Backends()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SegmentStorageTest, ReturnsWhatWasPut) {
  for (size_t bytes : {1, 4095, 4096, 4097, 100000}) {
    const Sample sample = MakeSample(bytes, bytes);
    ASSERT_TRUE(PutSample(*storage_, sample).ok());
    EXPECT_TRUE(CheckSample(*storage_, sample).ok());
    EXPECT_EQ(*storage_->Peek(sample.name()), sample.record);
    EXPECT_EQ(*storage_->ReadTokens(sample.name()), sample.token_ids);
  }
  EXPECT_EQ(storage_->Stats().segments, 5u);
  EXPECT_EQ(storage_->Stats().image_bytes, 1u + 4095 + 4096 + 4097 + 100000);
  EXPECT_GE(storage_->Stats().physical_bytes, storage_->Stats().image_bytes);
}

TEST_P(SegmentStorageTest, ReadsTheWantedPartsAndNoOthers) {
  for (const size_t bytes : {1, 4096, 4097, 100000}) {
    const Sample sample = MakeSample(bytes, bytes);
    ASSERT_TRUE(PutSample(*storage_, sample).ok());
    const auto parts = storage_->OpenParts(sample.name());
    ASSERT_TRUE(parts.ok()) << parts.status();
    ASSERT_NE(*parts, nullptr);
    EXPECT_EQ((*parts)->image_bytes(), bytes);
    EXPECT_EQ((*parts)->token_ids(), sample.token_ids);
    const uint32_t num_parts = (*parts)->num_parts();
    const std::byte untouched{0xa5};
    std::vector<std::byte> image(bytes, untouched);
    const std::vector<PartRun> runs = {{num_parts / 2, 1}, {num_parts - 1, 1}};
    ASSERT_TRUE((*parts)->Read(runs, image).ok());
    for (size_t i = 0; i < bytes; ++i) {
      const size_t part = i / (*parts)->part_bytes();
      const bool is_wanted = part == num_parts / 2 || part == num_parts - 1;
      ASSERT_EQ(image[i], is_wanted ? sample.image[i] : untouched) << i;
    }
    ASSERT_TRUE((*parts)->Read(std::vector<PartRun>{{0, num_parts}}, image).ok());
    EXPECT_EQ(image, sample.image);
  }
  EXPECT_TRUE(absl::IsNotFound(storage_->OpenParts(MakeSample(7).name()).status()));
}

TEST_P(SegmentStorageTest, GeneratedKvIsKeptWithHowItWasMadeAndFoundByItsParent) {
  Sample generated = MakeSample(1);
  generated.record.provenance = common::Provenance{
      common::SaltHash("made by"), common::SaltHash("sources"), common::SaltHash("text")};
  const Sample exact = MakeSample(2);  // of the same parent
  ASSERT_TRUE(PutSample(*storage_, generated).ok());
  ASSERT_TRUE(PutSample(*storage_, exact).ok());
  EXPECT_EQ(*storage_->Peek(generated.name()), generated.record);
  const auto children = storage_->Children(generated.record.parent);
  ASSERT_EQ(children.size(), 1u);
  EXPECT_EQ(children[0], generated.record);
  EXPECT_TRUE(storage_->Children(generated.name()).empty());
  EXPECT_EQ(*storage_->Delete({&generated.name(), 1}), 1u);
  EXPECT_TRUE(storage_->Children(generated.record.parent).empty());
}

TEST_P(SegmentStorageTest, PuttingTwiceChangesNothing) {
  const Sample sample = MakeSample(1);
  ASSERT_TRUE(PutSample(*storage_, sample).ok());
  EXPECT_TRUE(PutSample(*storage_, sample).ok());
  EXPECT_EQ(storage_->Stats().segments, 1u);
  EXPECT_EQ(storage_->Stats().puts_total, 1u);
}

TEST_P(SegmentStorageTest, RefusesSizesThatDisagree) {
  const Sample sample = MakeSample(1);
  const std::span<const std::byte> image(sample.image);
  EXPECT_TRUE(absl::IsInvalidArgument(storage_->Put(sample.record, sample.token_ids, {})));
  EXPECT_TRUE(absl::IsInvalidArgument(
      storage_->Put(sample.record, sample.token_ids, image.first(image.size() - 1))));
  EXPECT_TRUE(absl::IsInvalidArgument(storage_->Put(sample.record, {}, image)));
  EXPECT_FALSE(storage_->Peek(sample.name()).has_value());
  ASSERT_TRUE(PutSample(*storage_, sample).ok());
  std::vector<std::byte> shorter(image.size() - 1);
  EXPECT_TRUE(absl::IsInvalidArgument(storage_->Read(sample.name(), shorter)));
}

TEST_P(SegmentStorageTest, UnknownNamesAreNotFound) {
  const Sample sample = MakeSample(1);
  std::vector<std::byte> image(10);
  EXPECT_TRUE(absl::IsNotFound(storage_->Find(sample.name(), sample.token_ids).status()));
  EXPECT_TRUE(absl::IsNotFound(storage_->ReadTokens(sample.name()).status()));
  EXPECT_TRUE(absl::IsNotFound(storage_->Read(sample.name(), image)));
  EXPECT_TRUE(absl::IsNotFound(storage_->Quarantine(sample.name(), "test")));
  EXPECT_EQ(*storage_->Delete({&sample.name(), 1}), 0u);
}

TEST_P(SegmentStorageTest, ANameWithOtherTokensIsAMiss) {
  const Sample sample = MakeSample(1);
  ASSERT_TRUE(PutSample(*storage_, sample).ok());
  std::vector<int32_t> others = sample.token_ids;
  ++others.back();
  EXPECT_TRUE(absl::IsNotFound(storage_->Find(sample.name(), others).status()));
  others = sample.token_ids;
  others.pop_back();
  EXPECT_TRUE(absl::IsNotFound(storage_->Find(sample.name(), others).status()));
  EXPECT_EQ(storage_->Stats().token_mismatches_total, 2u);
  EXPECT_TRUE(CheckSample(*storage_, sample).ok());
}

TEST_P(SegmentStorageTest, DeletedSegmentsAreGoneAndTheirRoomIsFree) {
  const Sample kept = MakeSample(1, 200000);
  const Sample first = MakeSample(2, 4'000'000);
  const Sample second = MakeSample(3, 4'000'000);
  ASSERT_TRUE(PutSample(*storage_, first).ok());
  ASSERT_TRUE(PutSample(*storage_, kept).ok());
  ASSERT_TRUE(PutSample(*storage_, second).ok());
  const uint64_t before = storage_->Stats().physical_bytes;
  const std::vector<SegmentName> names = {first.name(), MakeSample(9).name(), second.name()};
  EXPECT_EQ(*storage_->Delete(names), 2u);
  EXPECT_TRUE(absl::IsNotFound(CheckSample(*storage_, first)));
  EXPECT_TRUE(absl::IsNotFound(CheckSample(*storage_, second)));
  EXPECT_TRUE(CheckSample(*storage_, kept).ok());
  EXPECT_LE(storage_->Stats().physical_bytes + 7'500'000, before);
  // A deleted segment can come back.
  ASSERT_TRUE(PutSample(*storage_, first).ok());
  EXPECT_TRUE(CheckSample(*storage_, first).ok());
}

TEST_P(SegmentStorageTest, ListsByLastUseAndTheEndOfAPrefixFirst) {
  std::vector<Sample> samples;
  for (int i = 0; i < 4; ++i) {
    samples.push_back(MakeSample(i));
    samples.back().record.token_begin = 4 + 1024 * i;
    ASSERT_TRUE(PutSample(*storage_, samples.back()).ok());
  }
  const auto order = [this] {
    std::vector<uint64_t> begins;
    for (const SegmentRecord& record : storage_->List()) begins.push_back(record.token_begin);
    return begins;
  };
  EXPECT_EQ(order(), (std::vector<uint64_t>{3076, 2052, 1028, 4}));
  const std::vector<SegmentName> prefix = {samples[2].name(), samples[3].name()};
  storage_->Touch(prefix, At(5));
  EXPECT_EQ(order(), (std::vector<uint64_t>{1028, 4, 3076, 2052}));
  storage_->Touch({&samples[3].name(), 1}, At(4));  // earlier than known: no change
  EXPECT_EQ(order(), (std::vector<uint64_t>{1028, 4, 3076, 2052}));
  EXPECT_TRUE(storage_->FlushTouches().ok());
}

TEST_P(SegmentStorageTest, KeepsNamedContexts) {
  const Sample sample = MakeSample(1);
  ASSERT_TRUE(PutSample(*storage_, sample).ok());
  ContextRecord context;
  context.context_name = "handbook";
  context.salt_hash = common::SaltHash("a");
  context.root = sample.record.root;
  context.segments = {sample.name()};
  context.num_tokens = 1100;
  context.pinned = true;
  context.created = At(1);
  context.expires = At(100);
  ASSERT_TRUE(storage_->PutContext(context).ok());
  EXPECT_EQ(*storage_->FindContext(context.salt_hash, "handbook"), context);
  EXPECT_TRUE(absl::IsNotFound(storage_->FindContext(common::SaltHash("b"), "handbook").status()));
  context.pinned = false;
  context.expires = absl::InfiniteFuture();
  ASSERT_TRUE(storage_->PutContext(context).ok());
  EXPECT_EQ(storage_->ListContexts(), std::vector<ContextRecord>{context});
  EXPECT_EQ(storage_->Stats().contexts, 1u);
  EXPECT_TRUE(storage_->DeleteContext(context.salt_hash, "handbook").ok());
  EXPECT_TRUE(absl::IsNotFound(storage_->DeleteContext(context.salt_hash, "handbook")));
  EXPECT_TRUE(CheckSample(*storage_, sample).ok());
}

TEST_P(SegmentStorageTest, RefusesContextsOutsideTheLimits) {
  ContextRecord context;
  EXPECT_TRUE(absl::IsInvalidArgument(storage_->PutContext(context)));
  context.context_name = std::string(kMaxContextNameBytes + 1, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(storage_->PutContext(context)));
  context.context_name = "x";
  context.segments = {MakeSample(1).name()};
  EXPECT_TRUE(absl::IsNotFound(storage_->PutContext(context)));
  EXPECT_TRUE(storage_->ListContexts().empty());
}

TEST_P(SegmentStorageTest, QuarantinedSegmentsAreNotServedAndCanBePutAgain) {
  const Sample sample = MakeSample(1, 50000);
  ASSERT_TRUE(PutSample(*storage_, sample).ok());
  ASSERT_TRUE(storage_->Quarantine(sample.name(), "test").ok());
  EXPECT_TRUE(absl::IsNotFound(CheckSample(*storage_, sample)));
  EXPECT_EQ(storage_->Stats().quarantined, 1u);
  EXPECT_EQ(storage_->Stats().corrupt_total, 1u);
  ASSERT_TRUE(PutSample(*storage_, sample).ok());
  EXPECT_EQ(*storage_->PurgeQuarantine(), 1u);
  EXPECT_EQ(storage_->Stats().quarantined, 0u);
  EXPECT_TRUE(CheckSample(*storage_, sample).ok());
}

TEST_P(SegmentStorageTest, VerifiesEverything) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(PutSample(*storage_, MakeSample(i)).ok());
  const auto report = storage_->VerifyAll();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->segments_checked, 3u);
  EXPECT_EQ(report->bytes_checked, 15000u);
  EXPECT_TRUE(report->corrupt.empty());
}

TEST_P(SegmentStorageTest, ReportsItsStages) {
  const Sample sample = MakeSample(1, 50000);
  bool seen_early = false;
  on_stage_ = [&](StorageStage stage) {
    if (stage < StorageStage::kPutCommitted) {
      seen_early |= storage_->Peek(sample.name()).has_value();
    }
  };
  ASSERT_TRUE(PutSample(*storage_, sample).ok());
  ASSERT_TRUE(storage_->Delete({&sample.name(), 1}).ok());
  EXPECT_FALSE(seen_early);
  EXPECT_EQ(stages_,
            (std::vector<StorageStage>{StorageStage::kPutBegun, StorageStage::kPutHalfPayload,
                                       StorageStage::kPutPayload, StorageStage::kPutCommitted,
                                       StorageStage::kDeleteCommitted}));
}

// The rows are gone before the catalog says so: what is missing then was deleted, not damaged.
TEST_P(SegmentStorageTest, AReadDuringADeletionFindsNoDamage) {
  const Sample sample = MakeSample(1, 30000);
  ASSERT_TRUE(PutSample(*storage_, sample).ok());
  absl::Status found;
  std::thread reader;
  absl::Notification has_read;
  on_stage_ = [&](StorageStage stage) {
    if (stage != StorageStage::kDeleteCommitted) return;
    reader = std::thread([&] {
      found = CheckSample(*storage_, sample);
      has_read.Notify();
    });
    // A reader that waits for the deletion does not get here; one that does not must be seen.
    has_read.WaitForNotificationWithTimeout(absl::Seconds(1));
  };
  const auto removed = storage_->Delete({&sample.name(), 1});
  ASSERT_TRUE(reader.joinable());
  reader.join();
  EXPECT_EQ(removed.value_or(0), 1u);
  EXPECT_TRUE(absl::IsNotFound(found)) << found;
  EXPECT_EQ(storage_->Stats().corrupt_total, 0u);
}

TEST_P(SegmentStorageTest, ReadersAndWritersRunTogether) {
  constexpr int kSamples = 12;
  std::vector<Sample> samples;
  for (int i = 0; i < kSamples; ++i) samples.push_back(MakeSample(i, 30000));
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&, t] {
      for (uint32_t i = t; !stop; ++i) {
        const absl::Status status = CheckSample(*storage_, samples[i % kSamples]);
        if (!status.ok() && !absl::IsNotFound(status)) ++wrong;
        storage_->Touch({&samples[i % kSamples].name(), 1}, At(i));
      }
    });
  }
  for (int round = 0; round < 60; ++round) {
    const Sample& sample = samples[round % kSamples];
    if (round / kSamples % 2 == 0) {
      EXPECT_TRUE(PutSample(*storage_, sample).ok());
    } else {
      EXPECT_TRUE(storage_->Delete({&sample.name(), 1}).ok());
    }
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(storage_->Stats().corrupt_total, 0u);
}

}  // namespace
}  // namespace retroinfer::kvstore
