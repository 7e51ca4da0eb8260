// A KvStore with a disk tier over a storage in memory, and a worker that fills it, for tests.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "kv_store_service/store/kv_store.h"
#include "tests/kv_store_service/named_chain.h"
#include "tests/kv_store_service/segment_writer.h"
#include "tests/kv_store_service/temporary_folder.h"
#include "tests/support/storage/in_memory_segment_storage.h"

namespace retroinfer::kvstore {

inline constexpr uint64_t kArenaBytes = 8 << 20;
inline constexpr uint64_t kArenaPages = kArenaBytes / kPageBytes;

// Passes everything on to a storage that outlives the store.
class SharedStorage : public SegmentStorage {
 public:
  explicit SharedStorage(std::shared_ptr<SegmentStorage> to) : to_(std::move(to)) {}
  absl::Status Put(const SegmentRecord& record, std::span<const int32_t> token_ids,
                   std::span<const std::byte> image) override {
    while (stuck_) absl::SleepFor(absl::Milliseconds(1));
    if (full_) return absl::ResourceExhaustedError("the disk is full");
    return to_->Put(record, token_ids, image);
  }
  absl::StatusOr<SegmentRecord> Find(const SegmentName& name,
                                     std::span<const int32_t> token_ids) override {
    return to_->Find(name, token_ids);
  }
  std::optional<SegmentRecord> Peek(const SegmentName& name) override { return to_->Peek(name); }
  std::vector<SegmentRecord> Children(const SegmentName& parent) override {
    return to_->Children(parent);
  }
  absl::StatusOr<std::vector<int32_t>> ReadTokens(const SegmentName& name) override {
    return to_->ReadTokens(name);
  }
  absl::Status Read(const SegmentName& name, std::span<std::byte> image) override {
    while (stuck_) absl::SleepFor(absl::Milliseconds(1));
    absl::Status status = to_->Read(name, image);
    if (status.ok() && damages_) image[kPageBytes] ^= std::byte{0xff};
    return fails_ ? absl::UnavailableError("the disk fails") : status;
  }
  absl::StatusOr<std::unique_ptr<ImageParts>> OpenParts(const SegmentName& name) override {
    if (!has_parts_) return nullptr;
    ASSIGN_OR_RETURN(auto parts, to_->OpenParts(name));
    return std::make_unique<SharedParts>(this, std::move(parts), num_images_++);
  }
  absl::StatusOr<size_t> Delete(std::span<const SegmentName> names) override {
    return to_->Delete(names);
  }
  void Touch(std::span<const SegmentName> names, absl::Time when) override {
    to_->Touch(names, when);
  }
  absl::Status FlushTouches() override { return to_->FlushTouches(); }
  std::vector<SegmentRecord> List() override { return to_->List(); }
  absl::Status PutContext(const ContextRecord& context) override {
    return to_->PutContext(context);
  }
  absl::StatusOr<ContextRecord> FindContext(const Hash256& salt_hash,
                                            std::string_view name) override {
    return to_->FindContext(salt_hash, name);
  }
  absl::Status DeleteContext(const Hash256& salt_hash, std::string_view name) override {
    return to_->DeleteContext(salt_hash, name);
  }
  std::vector<ContextRecord> ListContexts() override { return to_->ListContexts(); }
  absl::Status Quarantine(const SegmentName& name, std::string_view reason) override {
    return to_->Quarantine(name, reason);
  }
  absl::StatusOr<size_t> PurgeQuarantine() override { return to_->PurgeQuarantine(); }
  absl::StatusOr<VerifyReport> VerifyAll() override { return to_->VerifyAll(); }
  StorageStats Stats() override { return to_->Stats(); }

  bool has_parts_ = true;                     // images can be read in parts
  std::atomic<bool> rests_are_stuck_{false};  // what follows the first read of an image waits,
  std::atomic<bool> rests_fail_{false};       // or is damaged: the segment is in quarantine,
  std::atomic<int> damaged_image_{-1};        // or is so at once of this image, as they are opened
  bool damages_ = false;                      // reads return a wrong index
  bool fails_ = false;                        // reads fail
  std::atomic<bool> full_{false};
  std::atomic<bool> stuck_{false};  // reads and writes wait

 private:
  class SharedParts : public ImageParts {
   public:
    SharedParts(SharedStorage* storage, std::unique_ptr<ImageParts> to, int number)
        : storage_(*storage), to_(std::move(to)), number_(number) {}
    uint32_t part_bytes() const override { return to_->part_bytes(); }
    uint64_t image_bytes() const override { return to_->image_bytes(); }
    const std::vector<int32_t>& token_ids() const override { return to_->token_ids(); }
    absl::Status Read(std::span<const PartRun> runs, std::span<std::byte> image) override {
      if (is_first_.exchange(false)) return to_->Read(runs, image);
      if (storage_.damaged_image_ == number_) return Damaged();
      while (storage_.rests_are_stuck_) absl::SleepFor(absl::Milliseconds(1));
      if (storage_.rests_fail_) return Damaged();
      return to_->Read(runs, image);
    }

   private:
    static absl::Status Damaged() { return absl::DataLossError("the checksum of part 9 is wrong"); }

    SharedStorage& storage_;
    const std::unique_ptr<ImageParts> to_;
    const int number_;
    std::atomic<bool> is_first_{true};
  };

  std::shared_ptr<SegmentStorage> to_;
  std::atomic<int> num_images_{0};
};

class DurableStoreTest : public testing::Test {
 protected:
  DurableStoreTest() { Start(); }

  // A new process with an empty arena and the same disk.
  void Start(PersistMode mode = PersistMode::kWriteThrough) {
    store_.reset();
    KvStore::Options store_options;
    store_options.disk_drain_timeout = drain_timeout_;
    store_ = std::make_unique<KvStore>(store_options, StateFile(folder_.path() + "/state"));
    auto storage = std::make_unique<SharedStorage>(disk_);
    storage_ = storage.get();
    DurableTierOptions options;
    options.mode = mode;
    options.limits = limits_;
    options.reserve_bytes = reserve_bytes_;
    KvStore* const store = store_.get();
    store_->SetDurableTier(std::make_unique<DurableTier>(
        options, std::move(storage),
        [store](const SegmentName& name) { return store->context_segments().IsReferenced(name); }));
    store_->leases().SetArena(*common::SealedMemory::Create("test arena", arena_bytes_, 1));
    call_number_ = 0;
    Attach("model");
  }
  void Attach(const std::string& model, uint32_t num_layers = 2) {
    KvGeometry geometry = geometry_;
    geometry.num_layers = num_layers;
    const auto result = store_->leases().Attach({geometry, model, 16, 64, 64, false});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->store_writes_arena);
    token_ = result->token;
    auto pair = store_->leases().ClaimDescriptors(token_, 1);
    ASSERT_TRUE(pair.ok()) << pair.status();
    arena_ = *common::SealedMemory::Adopt(std::move(pair->arena), arena_bytes_);
    call_number_ = 0;
  }
  std::span<std::byte> BytesOf(const ExtentRecord& extent) {
    return arena_.bytes().subspan(size_t{extent.pages.first} * kPageBytes,
                                  size_t{extent.pages.count} * kPageBytes);
  }
  // What tells the segment from others: in its tail, if it has one.
  std::byte* Mark(const ExtentRecord& extent) {
    const SegmentLayout layout(geometry_, 1024);
    return BytesOf(extent).data() + (geometry_.has_window_layers()
                                         ? layout.tail_page * layout.page_bytes
                                         : layout.centroids_offset);
  }
  // Reserves as the worker's link does: tries again while the store reads from the disk.
  Reservation Reserve(uint64_t sequence, const std::vector<SegmentIdentity>& chain) {
    while (true) {
      const auto reservation =
          store_->reservations().Reserve(token_, ++call_number_, NamedRequest(sequence, chain));
      if (reservation.ok()) return *reservation;
      if (common::ReasonOf(reservation.status()).reason != kWaitsForDiskReason) {
        ADD_FAILURE() << reservation.status();
        return {};
      }
      ++num_waits_;
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  // Computes what is not cached; checks what is. Returns how much was cached.
  size_t Run(uint64_t sequence, const std::vector<SegmentIdentity>& chain) {
    const Reservation reservation = Reserve(sequence, chain);
    for (size_t i = 0; i < reservation.extents.size(); ++i) {
      const ExtentRecord& extent = reservation.extents[i];
      const auto& name = chain[i].name.bytes;
      if (i < reservation.num_cached) {
        EXPECT_EQ(std::memcmp(Mark(extent), name.data(), name.size()), 0);
        continue;
      }
      const uint64_t begin = kSinkTokens + 1024 * i;
      WriteSegment(BytesOf(extent), geometry_, begin, 1024);
      std::memcpy(Mark(extent), name.data(), name.size());
      const std::vector<SegmentToCommit> segments = {{extent.id, begin, 1024, chain[i]}};
      EXPECT_TRUE(store_->reservations().Commit(token_, ++call_number_, sequence, segments).ok());
    }
    EXPECT_TRUE(store_->reservations().Release(token_, ++call_number_, sequence).ok());
    return reservation.num_cached;
  }
  void WaitUntilWritten() {
    while (store_->stats().durable->persister.queued > 0) absl::SleepFor(absl::Milliseconds(1));
  }
  // Waits until every page is free or could be. The persister lets go of a segment a moment after
  // it has told that the segment is written.
  bool AwaitNothingIsHeld() {
    const absl::Time deadline = absl::Now() + absl::Minutes(2);
    while (store_->stats().free_pages + store_->stats().unreferenced_pages != kArenaPages) {
      if (absl::Now() >= deadline) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

  TemporaryFolder folder_;
  // Of the next Start().
  KvGeometry geometry_ = kTinyGeometry;
  DiskLimits limits_;
  uint64_t reserve_bytes_ = 0;
  absl::Duration drain_timeout_ = absl::Seconds(20);
  uint64_t arena_bytes_ = kArenaBytes;
  std::shared_ptr<SegmentStorage> disk_ = MakeInMemorySegmentStorage();
  std::unique_ptr<KvStore> store_;
  SharedStorage* storage_ = nullptr;
  common::SealedMemory arena_;
  std::string token_;
  uint64_t call_number_ = 0;
  int num_waits_ = 0;
  const std::vector<SegmentIdentity> chain_ = NamedChain({1, 2});
};

}  // namespace retroinfer::kvstore
