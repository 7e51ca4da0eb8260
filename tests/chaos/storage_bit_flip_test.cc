// Flips single bits in everything that the durable store keeps, and reads all of it back. Whatever
// is flipped, a segment is returned right or not at all, and what is lost is counted.
//
// RETROINFER_CHAOS_FLIPS: in rows and in files, each (default 600 and 150). RETROINFER_CHAOS_SEED.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kv_store_service/persistence/rocksdb_segment_storage.h"
#include "kv_store_service/persistence/segment_codec.h"
#include "kv_store_service/persistence/segment_tables.h"
#include "spdlog/spdlog.h"
#include "tests/kv_store_service/persistence/sample_segments.h"

namespace retroinfer::kvstore {
namespace {

namespace fs = std::filesystem;
using testing::At;
using testing::CheckSample;
using testing::MakeSample;
using testing::PutSample;
using testing::Sample;
using testing::TempFolder;

constexpr int kSamples = 48;
constexpr int kContexts = 8;

int EnvInt(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

RocksDbStorageOptions Options(const std::string& folder) {
  RocksDbStorageOptions options;
  options.folder = folder;
  options.reserve_bytes = 0;
  options.chunk_bytes = 4096;
  return options;
}

ContextRecord MakeContext(int index, const Sample& sample) {
  ContextRecord context;
  context.context_name = "context " + std::to_string(index);
  context.salt_hash = sample.record.salt_hash;
  context.root = sample.record.root;
  context.segments = {sample.name()};
  context.num_tokens = 1028;
  context.pinned = index % 2 == 0;
  context.created = At(7);
  return context;
}

class StorageBitFlipTest : public ::testing::Test {
 protected:
  StorageBitFlipTest() : random_(EnvInt("RETROINFER_CHAOS_SEED", 1)) {
    spdlog::set_level(spdlog::level::off);
    for (int i = 0; i < kSamples; ++i) samples_.push_back(MakeSample(i, 10'000));
    std::printf("seed %d\n", EnvInt("RETROINFER_CHAOS_SEED", 1));
  }

  // Makes a store with all samples and contexts. With `live_copy`, also a copy of its folder as it
  // is while the store is open: what kill -9 would leave.
  void MakeStore(const std::string& folder, const std::string& live_copy = "") {
    auto storage = OpenRocksDbSegmentStorage(Options(folder));
    ASSERT_TRUE(storage.ok()) << storage.status();
    for (const Sample& sample : samples_) ASSERT_TRUE(PutSample(**storage, sample).ok());
    for (int i = 0; i < kContexts; ++i) {
      ASSERT_TRUE((*storage)->PutContext(MakeContext(i, samples_[i])).ok());
    }
    std::vector<SegmentName> names;
    for (const Sample& sample : samples_) names.push_back(sample.name());
    (*storage)->Touch(names, At(50));
    ASSERT_TRUE((*storage)->FlushTouches().ok());
    if (!live_copy.empty()) fs::copy(folder, live_copy, fs::copy_options::recursive);
  }

  size_t Random(size_t count) { return random_() % count; }

  std::mt19937_64 random_;
  std::vector<Sample> samples_;
};

void FlipBit(std::string& bytes, size_t bit) { bytes[bit / 8] ^= static_cast<char>(1 << bit % 8); }

// ---- Flips in rows, through a raw handle: RocksDB's own checksums are right afterwards. ----

class StorageRowFlipTest : public StorageBitFlipTest {
 protected:
  // Flips a bit in some rows of a store, at most one for each segment and context.
  void FlipRows(const std::string& folder) {
    lost_segments_.clear(), lost_uses_.clear(), lost_contexts_.clear();
    flipped_ = 0;
    auto tables = SegmentTables::Open(folder + "/db", {});
    ASSERT_TRUE(tables.ok()) << tables.status();
    for (int i = 0; i < kSamples; ++i) {
      const std::string name(samples_[i].name().view());
      switch (Random(5)) {
        case 0:
          Flip(**tables, Table::kManifest, name, "manifest");
          lost_segments_.insert(i);
          break;
        case 1:
          Flip(**tables, Table::kIndex, name, "index");
          lost_segments_.insert(i);
          break;
        case 2:  // payloads got the ids 1, 2, ... in the order of the samples
          Flip(**tables, Table::kPayload, ChunkKey(i + 1, static_cast<uint32_t>(Random(3))),
               "payload");
          lost_segments_.insert(i);
          break;
        case 3:
          Flip(**tables, Table::kUsage, name, "usage");
          lost_uses_.insert(i);
          break;
        default:
          break;
      }
    }
    for (int i = 0; i < kContexts; ++i) {
      if (Random(2) == 0) continue;
      const ContextRecord context = MakeContext(i, samples_[i]);
      Flip(**tables, Table::kContexts, ContextKey(context.salt_hash, context.context_name),
           "context");
      lost_contexts_.insert(i);
    }
  }

  void CheckStore(const std::string& folder) {
    auto storage = OpenRocksDbSegmentStorage(Options(folder));
    ASSERT_TRUE(storage.ok()) << storage.status();
    for (int i = 0; i < kSamples; ++i) {
      const absl::Status status = CheckSample(**storage, samples_[i]);
      if (lost_segments_.contains(i)) {
        EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsNotFound(status)) << i << status;
        EXPECT_FALSE((*storage)->Peek(samples_[i].name()).has_value());
        ASSERT_TRUE(PutSample(**storage, samples_[i]).ok());  // computed afresh
        EXPECT_TRUE(CheckSample(**storage, samples_[i]).ok());
      } else {
        EXPECT_TRUE(status.ok()) << i << status;
        EXPECT_EQ((*storage)->Peek(samples_[i].name())->last_use,
                  lost_uses_.contains(i) ? At(0) : At(50));
      }
    }
    for (int i = 0; i < kContexts; ++i) {
      const ContextRecord context = MakeContext(i, samples_[i]);
      const auto found = (*storage)->FindContext(context.salt_hash, context.context_name);
      EXPECT_EQ(found.ok(), !lost_contexts_.contains(i)) << i;
      if (found.ok()) {
        EXPECT_EQ(*found, context);
      }
    }
    EXPECT_EQ((*storage)->ListContexts().size(), kContexts - lost_contexts_.size());
    EXPECT_EQ((*storage)->Stats().corrupt_total, flipped_);  // every one was noticed
    EXPECT_EQ((*storage)->Stats().quarantined, lost_segments_.size());
  }

  uint64_t flipped_ = 0;
  std::map<std::string, int> flips_of_;

 private:
  // Flips a bit of the value, or now and then of the key, of one row.
  void Flip(SegmentTables& tables, Table table, const std::string& key, const std::string& kind) {
    std::string value;
    auto& db = tables.db();
    ASSERT_TRUE(db.Get({}, tables.handle(table), key, &value).ok());
    std::string new_key = key;
    const bool in_key = Random(4) == 0;
    if (in_key) {
      std::string other;  // what a flip must not hit: the key of another row
      do {
        new_key = key;
        FlipBit(new_key, Random(key.size() * 8));
      } while (db.Get({}, tables.handle(table), new_key, &other).ok());
      ASSERT_TRUE(db.Delete({}, tables.handle(table), key).ok());
    } else {
      FlipBit(value, Random(value.size() * 8));
    }
    ASSERT_TRUE(db.Put({}, tables.handle(table), new_key, value).ok());
    ++flipped_;
    ++flips_of_[kind + (in_key ? " key" : " value")];
  }

  std::set<int> lost_segments_, lost_uses_, lost_contexts_;
};

TEST_F(StorageRowFlipTest, InRows) {
  TempFolder pristine, copies;
  MakeStore(pristine.path());
  const int wanted = EnvInt("RETROINFER_CHAOS_FLIPS", 600);
  for (int flips = 0; flips < wanted && !HasFatalFailure(); flips += static_cast<int>(flipped_)) {
    fs::copy(pristine.path(), copies.path(), fs::copy_options::recursive);
    FlipRows(copies.path());
    CheckStore(copies.path());
    fs::remove_all(copies.path());
  }
  for (const auto& [kind, count] : flips_of_) std::printf("%-16s %d\n", kind.c_str(), count);
}

// A damaged end of MANIFEST or log takes rows away as if they had never been written.
TEST_F(StorageRowFlipTest, RowsThatVanishedAreCounted) {
  TempFolder folder;
  MakeStore(folder.path());
  {
    auto tables = SegmentTables::Open(folder.path() + "/db", {});
    ASSERT_TRUE(tables.ok());
    auto& db = (*tables)->db();
    const ContextRecord context = MakeContext(3, samples_[3]);
    ASSERT_TRUE(
        db.Delete({}, (*tables)->handle(Table::kManifest), ToSlice(samples_[1].name().view()))
            .ok());
    ASSERT_TRUE(db.Delete({}, (*tables)->handle(Table::kContexts),
                          ContextKey(context.salt_hash, context.context_name))
                    .ok());
  }
  EXPECT_EQ((*OpenRocksDbSegmentStorage(Options(folder.path())))->Stats().corrupt_total, 2u);
  // Once.
  EXPECT_EQ((*OpenRocksDbSegmentStorage(Options(folder.path())))->Stats().corrupt_total, 0u);
}

// ---- Flips in the files. ----

std::string KindOf(const fs::path& file) {
  const std::string name = file.filename().string();
  for (const char* kind : {"MANIFEST", "OPTIONS", "CURRENT", "IDENTITY", "LOCK", "FORMAT", "COUNTS",
                           "CLEAN", ".blob", ".sst", ".log"}) {
    if (name.find(kind) != std::string::npos) return kind;
  }
  return "other";
}

class StorageFileFlipTest : public StorageBitFlipTest {
 protected:
  struct Tally {
    int flips = 0;
    int noticed = 0;   // rounds in which something was counted
    int lost = 0;      // segments
    int silent = 0;    // flips that lost something uncounted
    int replaced = 0;  // whole databases
  };

  // Returns the kinds of files that a flip must be tried on, with all files of each that are not
  // empty.
  static std::map<std::string, std::vector<fs::path>> FilesByKind(const std::string& folder) {
    std::map<std::string, std::vector<fs::path>> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file() || entry.file_size() == 0) continue;
      const std::string kind = KindOf(entry.path());
      if (kind != "other") files[kind].push_back(fs::relative(entry.path(), folder));
    }
    return files;
  }

  void FlipInFile(const fs::path& file) {
    const uint64_t bit = Random(fs::file_size(file) * 8);
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    char byte;
    stream.seekg(static_cast<std::streamoff>(bit / 8));
    stream.get(byte);
    stream.seekp(static_cast<std::streamoff>(bit / 8));
    stream.put(static_cast<char>(byte ^ (1 << bit % 8)));
    ASSERT_TRUE(stream.good());
  }

  // Flips a bit in one file of a kind, or in each blob file: they hold one segment each and do not
  // hide one another. Returns the number of flips.
  int FlipAndCheck(const std::string& folder, const std::string& kind,
                   const std::vector<fs::path>& paths, Tally& tally) {
    const bool all = kind == ".blob";
    const size_t chosen = Random(paths.size());
    for (size_t i = 0; i < paths.size(); ++i) {
      if (all || i == chosen) FlipInFile(folder + "/" + paths[i].string());
    }
    const int flips = all ? static_cast<int>(paths.size()) : 1;
    noticed_ = silent_ = 0;
    damaged_stores_ = 0;
    const int lost = CheckStore(folder);
    EXPECT_LE(lost, all ? flips : kSamples);
    EXPECT_EQ(silent_, 0);
    tally.silent += silent_;
    tally.flips += flips;
    tally.noticed += noticed_;
    tally.lost += lost;
    tally.replaced += static_cast<int>(damaged_stores_);
    return flips;
  }

  // Opens the store, checks all samples, and returns how many are lost.
  int CheckStore(const std::string& folder) {
    auto storage = OpenRocksDbSegmentStorage(Options(folder));
    EXPECT_TRUE(storage.ok()) << storage.status();
    if (!storage.ok()) return kSamples;
    int lost = 0;
    for (const Sample& sample : samples_) {
      const absl::Status status = CheckSample(**storage, sample);
      EXPECT_TRUE(status.ok() || absl::IsDataLoss(status) || absl::IsNotFound(status)) << status;
      if (status.ok()) continue;
      ++lost;
      EXPECT_TRUE(PutSample(**storage, sample).ok());
      EXPECT_TRUE(CheckSample(**storage, sample).ok());
    }
    for (const ContextRecord& context : (*storage)->ListContexts()) {
      const int index = std::atoi(context.context_name.c_str() + 8);
      EXPECT_EQ(context, MakeContext(index, samples_[index]));
    }
    const StorageStats stats = (*storage)->Stats();
    if (stats.corrupt_total > 0) ++noticed_;
    if (lost > 0 && stats.corrupt_total == 0) ++silent_;
    damaged_stores_ += stats.damaged_stores_total;
    return lost;
  }

  std::map<std::string, Tally> tallies_;
  int noticed_ = 0;  // flips after which something was counted
  int silent_ = 0;   // flips after which something was lost and nothing counted
  uint64_t damaged_stores_ = 0;
};

TEST_F(StorageFileFlipTest, InFiles) {
  TempFolder closed, live, copies;
  MakeStore(closed.path(), live.path());
  // Each flip opens a database, which on a slow disk takes a third of a second.
  const int wanted = EnvInt("RETROINFER_CHAOS_FLIPS", 150);
  int flips = 0;
  for (int round = 0; flips < wanted; ++round) {
    const std::string& source = round % 2 == 0 ? closed.path() : live.path();
    for (const auto& [kind, paths] : FilesByKind(source)) {
      // Where most of the bytes are, and where RocksDB interprets them.
      const bool is_table = kind == ".sst" || kind == ".log" || kind == "MANIFEST";
      for (int repeat = 0; repeat < (is_table ? 10 : 1); ++repeat) {
        SCOPED_TRACE(kind + " in round " + std::to_string(round));
        fs::copy(source, copies.path(), fs::copy_options::recursive);
        flips += FlipAndCheck(copies.path(), kind, paths,
                              tallies_[(round % 2 == 0 ? "closed " : "live   ") + kind]);
        fs::remove_all(copies.path());
      }
    }
  }
  std::printf("%-18s %6s %6s %6s %6s %6s\n", "file", "flips", "notice", "lost", "silent", "moved");
  for (const auto& [kind, tally] : tallies_) {
    std::printf("%-18s %6d %6d %6d %6d %6d\n", kind.c_str(), tally.flips, tally.noticed, tally.lost,
                tally.silent, tally.replaced);
  }
}

}  // namespace
}  // namespace retroinfer::kvstore
