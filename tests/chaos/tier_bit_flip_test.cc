// Flips single bits in every kind of row that the store keeps on the disk, and asks for all of it
// as a worker does: what is damaged is noticed, counted, put into quarantine and computed afresh;
// what is served is right to the last byte.
//
// RETROINFER_CHAOS_FLIPS: how many (default 300). RETROINFER_CHAOS_SEED.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/status/error_reason.h"
#include "kv_store_service/persistence/rocksdb_segment_storage.h"
#include "kv_store_service/persistence/segment_codec.h"
#include "kv_store_service/persistence/segment_tables.h"
#include "kv_store_service/store/kv_store.h"
#include "spdlog/spdlog.h"
#include "tests/kv_store_service/named_chain.h"
#include "tests/kv_store_service/segment_writer.h"
#include "tests/kv_store_service/temporary_folder.h"

namespace retroinfer::kvstore {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kArenaBytes = 64 << 20;
constexpr int kSegments = 24;

int EnvInt(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// A KvStore over a folder, and the worker that uses it.
class TierUser {
 public:
  explicit TierUser(const std::string& cache)
      : store_(KvStore::Options{}, StateFile(folder_.path() + "/state")) {
    DurableTierOptions options;
    options.folder = cache;
    options.open_storage = [](RocksDbStorageOptions storage) {
      storage.reserve_bytes = 0;
      storage.chunk_bytes = 64 << 10;
      return OpenRocksDbSegmentStorage(std::move(storage));
    };
    auto tier = DurableTier::Open(options, [this](const SegmentName& name) {
      return store_.context_segments().IsReferenced(name);
    });
    EXPECT_TRUE(tier.ok()) << tier.status();
    store_.SetDurableTier(*std::move(tier));
    store_.leases().SetArena(*common::SealedMemory::Create("test arena", kArenaBytes, 1));
    token_ = store_.leases().Attach({kTinyGeometry, "model", 16, 64, 64, false})->token;
    auto pair = store_.leases().ClaimDescriptors(token_, 1);
    arena_ = *common::SealedMemory::Adopt(std::move(pair->arena), kArenaBytes);
  }

  // Asks for a segment and computes it if it is not there. Returns whether it was, or nothing if
  // what was served is wrong.
  std::optional<bool> Run(int text) {
    const std::vector<SegmentIdentity> chain = NamedChain({text});
    const uint64_t sequence = ++sequence_;
    absl::StatusOr<Reservation> reservation;
    do {
      reservation =
          store_.reservations().Reserve(token_, ++call_number_, NamedRequest(sequence, chain));
      absl::SleepFor(absl::Microseconds(200));
    } while (common::ReasonOf(reservation.status()).reason == kWaitsForDiskReason);
    if (!reservation.ok()) return std::nullopt;
    const ExtentRecord& extent = reservation->extents[0];
    const std::vector<std::byte> right = Image(text);
    const std::span<std::byte> bytes = arena_.bytes().subspan(
        size_t{extent.pages.first} * kPageBytes, size_t{extent.pages.count} * kPageBytes);
    const bool cached = reservation->num_cached == 1;
    bool good = true;
    if (cached) {
      good = bytes.size() <= right.size() && std::equal(bytes.begin(), bytes.end(), right.begin());
    } else {
      std::copy_n(right.begin(), std::min(right.size(), bytes.size()), bytes.begin());
      const std::vector<SegmentToCommit> segments = {{extent.id, kSinkTokens, 1024, chain[0]}};
      good = store_.reservations().Commit(token_, ++call_number_, sequence, segments).ok();
    }
    good = good && store_.reservations().Release(token_, ++call_number_, sequence).ok();
    return good ? std::optional(cached) : std::nullopt;
  }

  StorageStats WaitUntilWritten() {
    while (store_.stats().durable->persister.queued > 0) absl::SleepFor(absl::Milliseconds(1));
    return store_.stats().durable->storage;
  }
  StorageStats stats() { return store_.stats().durable->storage; }

 private:
  // What a worker computes for a text: a valid segment with noise in its pages.
  static std::vector<std::byte> Image(int text) {
    const SegmentLayout layout(kTinyGeometry, 1024);
    std::vector<std::byte> image(size_t{layout.max_pages} * kPageBytes);
    const uint32_t used = WriteSegment(image, kTinyGeometry, kSinkTokens, 1024);
    std::mt19937_64 random(static_cast<uint64_t>(text));
    for (size_t at = size_t{layout.first_kv_page} * kPageBytes; at + 8 <= size_t{used} * kPageBytes;
         at += 8) {
      const uint64_t word = random();
      std::memcpy(image.data() + at, &word, sizeof(word));
    }
    return image;
  }

  TemporaryFolder folder_;
  KvStore store_;
  common::SealedMemory arena_;
  std::string token_;
  uint64_t call_number_ = 0;
  uint64_t sequence_ = 0;
};

class TierBitFlipTest : public ::testing::Test {
 protected:
  TierBitFlipTest() : random_(static_cast<uint64_t>(EnvInt("RETROINFER_CHAOS_SEED", 1))) {
    spdlog::set_level(spdlog::level::off);
  }

  // Flips a bit in one row of some segments. Sets flipped_ and lost_.
  void Flip(const std::string& cache) {
    flipped_ = 0;
    lost_.clear();
    auto tables = SegmentTables::Open(cache + "/db", {});
    ASSERT_TRUE(tables.ok()) << tables.status();
    for (int text = 0; text < kSegments; ++text) {
      const std::string name(NamedChain({text})[0].name.view());
      switch (random_() % 5) {
        case 0:
          FlipRow(**tables, Table::kManifest, name, "manifest");
          lost_.insert(text);
          break;
        case 1:
          FlipRow(**tables, Table::kIndex, name, "index");
          lost_.insert(text);
          break;
        case 2:  // payloads got the ids 1, 2, ... in the order of the texts
        case 3:
          FlipRow(**tables, Table::kPayload,
                  ChunkKey(static_cast<uint64_t>(text) + 1, static_cast<uint32_t>(random_() % 8)),
                  "payload");
          lost_.insert(text);
          break;
        default:
          FlipRow(**tables, Table::kUsage, name, "usage");
          break;
      }
    }
  }

  void FlipRow(SegmentTables& tables, Table table, const std::string& key, const char* kind) {
    std::string value;
    ASSERT_TRUE(tables.db().Get({}, tables.handle(table), key, &value).ok()) << kind;
    std::string new_key = key;
    const bool in_key = random_() % 4 == 0;
    if (in_key) {
      std::string other;  // what a flip must not hit: the key of another row
      do {
        new_key = key;
        FlipBit(new_key);
      } while (tables.db().Get({}, tables.handle(table), new_key, &other).ok());
      ASSERT_TRUE(tables.db().Delete({}, tables.handle(table), key).ok());
    } else {
      FlipBit(value);
    }
    ASSERT_TRUE(tables.db().Put({}, tables.handle(table), new_key, value).ok());
    ++flipped_;
    ++flips_of_[std::string(kind) + (in_key ? " key" : " value")];
  }
  void FlipBit(std::string& bytes) {
    const size_t bit = random_() % (bytes.size() * 8);
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
  }

  std::mt19937_64 random_;
  uint64_t flipped_ = 0;
  std::set<int> lost_;
  std::map<std::string, int> flips_of_;
};

TEST_F(TierBitFlipTest, NothingDamagedIsServed) {
  TemporaryFolder folder;
  const std::string pristine = folder.path() + "/pristine", copy = folder.path() + "/copy";
  {
    TierUser user(pristine);
    for (int text = 0; text < kSegments; ++text) EXPECT_EQ(user.Run(text), false);
    EXPECT_EQ(user.WaitUntilWritten().segments, uint64_t{kSegments});
  }
  const int wanted = EnvInt("RETROINFER_CHAOS_FLIPS", 300);
  int flips = 0;
  size_t lost = 0;
  while (flips < wanted && !HasFailure()) {
    fs::copy(pristine, copy, fs::copy_options::recursive);
    Flip(copy);
    flips += static_cast<int>(flipped_);
    lost += lost_.size();
    {
      TierUser user(copy);
      for (int text = 0; text < kSegments; ++text) {
        EXPECT_EQ(user.Run(text), !lost_.contains(text)) << text;
      }
      const StorageStats stats = user.WaitUntilWritten();
      EXPECT_EQ(stats.corrupt_total, flipped_);
      EXPECT_EQ(stats.quarantined, lost_.size());
      EXPECT_EQ(stats.segments, uint64_t{kSegments});  // written again
    }
    TierUser again(copy);
    for (int text = 0; text < kSegments; ++text) EXPECT_EQ(again.Run(text), true) << text;
    EXPECT_EQ(again.stats().corrupt_total, 0u);
    fs::remove_all(copy);
  }
  std::printf("%d flips, %zu segments lost, noticed, counted and computed afresh; by row:\n", flips,
              lost);
  for (const auto& [kind, count] : flips_of_) std::printf("%-16s %d\n", kind.c_str(), count);
}

}  // namespace
}  // namespace retroinfer::kvstore
