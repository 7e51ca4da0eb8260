// More contexts than fit, over a real disk: memory and disk stay under their caps, and what is
// pinned stays.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>

#include "kv_store_service/persistence/rocksdb_segment_storage.h"
#include "kv_store_service/persistence/storage_folder.h"
#include "tests/kv_store_service/contexts/context_fixture.h"

namespace retroinfer::kvstore {
namespace {

constexpr uint64_t kCapBytes = 48 << 20;
constexpr int kContexts = 520;

int64_t AnonymousBytes() {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line)) {
    long long kibibytes = 0;
    if (std::sscanf(line.c_str(), "RssAnon: %lld kB", &kibibytes) == 1) return kibibytes << 10;
  }
  return 0;
}

class ManyContextsTest : public ContextStoreTest {
 protected:
  ManyContextsTest() {
    contexts_.reset();
    store_.reset();  // lets go of the storage in memory
    RocksDbStorageOptions options;
    options.folder = folder_.path() + "/cache";
    options.write_buffer_bytes = 4 << 20;
    auto storage = OpenRocksDbSegmentStorage(options);
    EXPECT_TRUE(storage.ok()) << storage.status();
    disk_ = *std::move(storage);
    limits_.cap_bytes = kCapBytes;
    StartContexts(PersistMode::kOnDemand);
  }
  uint64_t PhysicalBytes() const {
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             folder_.path() + "/cache",
             std::filesystem::directory_options::skip_permission_denied)) {
      std::error_code gone;
      const uint64_t size = entry.is_regular_file(gone) ? entry.file_size(gone) : 0;
      if (!gone) bytes += size;
    }
    return bytes;
  }
};

TEST_F(ManyContextsTest, MemoryAndDiskStayUnderTheirCaps) {
  ASSERT_TRUE(SaveText("pinned", {1}, true).ok());
  int64_t memory_before = 0;
  uint64_t largest = 0;
  for (int i = 0; i < kContexts; ++i) {
    const auto saved = SaveText(absl::StrCat("context ", i), {100 + i});
    ASSERT_TRUE(saved.ok()) << i << ": " << saved.status();
    if (i == 120) memory_before = AnonymousBytes();
    largest = std::max(largest, PhysicalBytes());
    ASSERT_LE(largest, kCapBytes) << i;
  }
  const StoreStats stats = store_->stats();
  EXPECT_EQ(stats.durable->storage.contexts, kContexts + 1u);
  EXPECT_GT(stats.durable->budget.over_cap_total, 400u);
  EXPECT_EQ(stats.durable->budget.refused_total, 0u);
  EXPECT_EQ(stats.arena_pages, kArenaPages);
  EXPECT_LE(AnonymousBytes(), memory_before + (64 << 20));
  std::printf(
      "%d contexts: at most %.1f of %.1f MiB on disk, %.1f MiB more memory than after 120\n",
      kContexts, double(largest) / (1 << 20), double(kCapBytes) / (1 << 20),
      double(AnonymousBytes() - memory_before) / (1 << 20));

  std::set<std::string> whole;
  const auto listings = contexts_->List(tenant_);
  ASSERT_TRUE(listings.ok());
  for (const ContextListing& listing : *listings) {
    if (listing.on_disk == 1) whole.insert(listing.record.context_name);
  }
  EXPECT_EQ(whole.count("pinned"), 1u);
  EXPECT_GT(whole.size(), 20u);
  EXPECT_EQ(whole.count(absl::StrCat("context ", kContexts - 1)), 1u);
  EXPECT_EQ(whole.count("context 0"), 0u);
  EXPECT_EQ(contexts_->Verify(tenant_, "pinned")->intact, 1u);
}

}  // namespace
}  // namespace retroinfer::kvstore
