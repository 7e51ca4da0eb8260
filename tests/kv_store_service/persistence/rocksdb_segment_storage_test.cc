// What the RocksDB storage does beyond the contract suite: it survives, and it meets bad folders.
#include "kv_store_service/persistence/rocksdb_segment_storage.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "common/shm/unique_fd.h"
#include "tests/kv_store_service/persistence/sample_segments.h"

namespace retroinfer::kvstore {
namespace {

using testing::At;
using testing::CheckSample;
using testing::MakeSample;
using testing::PutSample;
using testing::Sample;
using testing::TempFolder;

absl::StatusOr<std::unique_ptr<SegmentStorage>> OpenStore(const std::string& folder,
                                                          uint64_t reserve_bytes = 0) {
  RocksDbStorageOptions options;
  options.reserve_bytes = reserve_bytes;
  options.write_buffer_bytes = 1 << 20;
  options.folder = folder;
  options.chunk_bytes = 4096;
  return OpenRocksDbSegmentStorage(options);
}

TEST(RocksDbSegmentStorageTest, EverythingSurvivesAReopen) {
  TempFolder folder;
  const Sample sample = MakeSample(1, 30000, "tenant");
  ContextRecord context;
  context.context_name = "handbook";
  context.salt_hash = sample.record.salt_hash;
  context.segments = {sample.name()};
  context.pinned = true;
  context.created = At(3);
  {
    auto storage = OpenStore(folder.path());
    ASSERT_TRUE(storage.ok()) << storage.status();
    ASSERT_TRUE(PutSample(**storage, sample).ok());
    ASSERT_TRUE(PutSample(**storage, MakeSample(2)).ok());
    ASSERT_TRUE((*storage)->PutContext(context).ok());
    (*storage)->Touch({&sample.name(), 1}, At(9));
    ASSERT_TRUE((*storage)->Quarantine(MakeSample(2).name(), "test").ok());
  }
  for (int i = 0; i < 2; ++i) {
    auto storage = OpenStore(folder.path());
    ASSERT_TRUE(storage.ok()) << storage.status();
    EXPECT_TRUE(CheckSample(**storage, sample).ok());
    EXPECT_EQ((*storage)->Peek(sample.name())->last_use, At(9));
    EXPECT_EQ(*(*storage)->FindContext(context.salt_hash, "handbook"), context);
    EXPECT_TRUE(absl::IsNotFound(CheckSample(**storage, MakeSample(2))));
    EXPECT_EQ((*storage)->Stats().quarantined, 1u);
    EXPECT_EQ((*storage)->Stats().orphans_removed_total, 0u);
  }
  auto storage = OpenStore(folder.path());
  EXPECT_EQ(*(*storage)->PurgeQuarantine(), 1u);
  EXPECT_TRUE(CheckSample(**storage, sample).ok());
}

TEST(RocksDbSegmentStorageTest, ASaltIsNowhereInTheFolder) {
  TempFolder folder;
  const std::string salt = "a very secret salt";
  {
    auto storage = OpenStore(folder.path());
    ASSERT_TRUE(PutSample(**storage, MakeSample(1, 5000, salt)).ok());
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(bytes.find(salt), std::string::npos) << entry.path();
  }
}

TEST(RocksDbSegmentStorageTest, ASecondStoreOnTheFolderIsRefused) {
  TempFolder folder;
  auto first = OpenStore(folder.path());
  ASSERT_TRUE(first.ok());
  const absl::Status second = OpenStore(folder.path()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_TRUE(PutSample(**first, MakeSample(1)).ok());
  first->reset();
  EXPECT_TRUE(OpenStore(folder.path()).ok());
}

TEST(RocksDbSegmentStorageTest, RefusesBadOptions) {
  TempFolder folder;
  RocksDbStorageOptions options;
  options.folder = folder.path();
  for (uint32_t chunk_bytes : {0u, 4095u, 128u << 20}) {
    options.chunk_bytes = chunk_bytes;
    EXPECT_TRUE(absl::IsInvalidArgument(OpenRocksDbSegmentStorage(options).status()));
  }
}

TEST(RocksDbSegmentStorageTest, AReadOnlyFolderIsRefusedWithAClearMessage) {
  TempFolder folder;
  ASSERT_TRUE(OpenStore(folder.path()).ok());
  // Root may write anywhere: look as somebody else, in a process of our own. A forked one, so that
  // the folder is made and removed here, by whom it belongs to.
  const std::string parent = std::filesystem::path(folder.path()).parent_path();
  chmod(parent.c_str(), 0755);
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
        if (lchown(entry.path().c_str(), 65534, 65534) != 0) _exit(2);
      }
      if (lchown(folder.path().c_str(), 65534, 65534) != 0 || setuid(65534) != 0) _exit(2);
    }
    std::filesystem::remove(folder.path() + "/LOCK");
    chmod(folder.path().c_str(), 0500);
    const absl::Status status = OpenStore(folder.path()).status();
    chmod(folder.path().c_str(), 0700);
    const std::string message(status.message());
    const bool clear = message.find("writing in the folder") != std::string::npos &&
                       message.find("choose another folder") != std::string::npos;
    if (!clear) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    _exit(absl::IsPermissionDenied(status) && clear ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(RocksDbSegmentStorageTest, AnotherUsersFolderIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  TempFolder folder;
  std::filesystem::create_directory(folder.path());
  ASSERT_EQ(chown(folder.path().c_str(), 65534, 65534), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(OpenStore(folder.path()).status()));
}

// A small file system that is gone when the descriptor is closed.
common::UniqueFd SmallFileSystem(const char* size) {
  TempFolder mount_point;
  std::filesystem::create_directory(mount_point.path());
  if (mount("tmpfs", mount_point.path().c_str(), "tmpfs", 0, size) != 0) return {};
  common::UniqueFd root(open(mount_point.path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  umount2(mount_point.path().c_str(), MNT_DETACH);
  return root;
}

std::string PathIn(const common::UniqueFd& root, const std::string& name) {
  return "/proc/self/fd/" + std::to_string(root.get()) + "/" + name;
}

TEST(RocksDbSegmentStorageTest, AnAlmostFullDiskRefusesPutsAndCanDelete) {
  const common::UniqueFd root = SmallFileSystem("size=12m");
  if (!root.valid()) GTEST_SKIP() << "may not mount a small file system";
  const std::string folder = PathIn(root, "store");
  auto storage = OpenStore(folder, 2u << 20);
  ASSERT_TRUE(storage.ok()) << storage.status();
  std::vector<Sample> stored;
  absl::Status status;
  while (stored.size() < 20) {
    const Sample sample = MakeSample(stored.size(), 1'500'000);
    status = PutSample(**storage, sample);
    if (!status.ok()) break;
    stored.push_back(sample);
  }
  ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_GE(stored.size(), 4u);
  EXPECT_EQ((*storage)->Stats().write_errors_total, 1u);
  const std::vector<SegmentName> names = {stored[0].name(), stored[1].name()};
  const auto removed = (*storage)->Delete(names);
  ASSERT_TRUE(removed.ok()) << removed.status();
  const Sample again = MakeSample(100, 1'500'000);
  EXPECT_TRUE(PutSample(**storage, again).ok());
  storage->reset();
  storage = OpenStore(folder, 2u << 20);
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_TRUE(CheckSample(**storage, again).ok());
  for (size_t i = 2; i < stored.size(); ++i) EXPECT_TRUE(CheckSample(**storage, stored[i]).ok());
}

// Others fill the disk, against which no reserve helps.
TEST(RocksDbSegmentStorageTest, AFullDiskFailsWritesKeepsReadsAndRecovers) {
  const common::UniqueFd root = SmallFileSystem("size=16m");
  if (!root.valid()) GTEST_SKIP() << "may not mount a small file system";
  const std::string folder = PathIn(root, "store");
  auto storage = OpenStore(folder, 0);
  ASSERT_TRUE(storage.ok()) << storage.status();
  const Sample first = MakeSample(1, 1'500'000), second = MakeSample(2, 1'500'000);
  ASSERT_TRUE(PutSample(**storage, first).ok());
  {
    std::ofstream filler(PathIn(root, "filler"), std::ios::binary);
    const std::string block(4096, 'x');
    // Leaves room that the check of the free space finds enough and the write does not.
    while (std::filesystem::space(PathIn(root, ".")).available > 1'510'000)
      filler << block << std::flush;
  }
  const absl::Status status = PutSample(**storage, second);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_FALSE((*storage)->Peek(second.name()).has_value());
  EXPECT_TRUE(CheckSample(**storage, first).ok());
  EXPECT_GE((*storage)->Stats().write_errors_total, 1u);

  std::filesystem::remove(PathIn(root, "filler"));
  absl::Status later;
  for (int i = 0; i < 300 && !(later = PutSample(**storage, second)).ok(); ++i) {
    absl::SleepFor(absl::Milliseconds(100));
  }
  EXPECT_TRUE(later.ok()) << later;
  // All of it must be on the disk already: RocksDB has returned too early here.
  std::filesystem::copy(folder, PathIn(root, "copy"), std::filesystem::copy_options::recursive);
  EXPECT_TRUE(CheckSample(**storage, second).ok());
  storage->reset();
  storage = OpenStore(folder, 0);
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_TRUE(CheckSample(**storage, first).ok());
  EXPECT_TRUE(CheckSample(**storage, second).ok());
  EXPECT_EQ((*storage)->Stats().corrupt_total, 0u);
  storage = OpenStore(PathIn(root, "copy"), 0);
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_TRUE(CheckSample(**storage, second).ok());
}

TEST(RocksDbSegmentStorageTest, ManySegmentsComeAndGoWithoutGrowth) {
  TempFolder folder;
  auto storage = OpenStore(folder.path());
  ASSERT_TRUE(storage.ok());
  uint64_t worst = 0;
  for (int i = 0; i < 150; ++i) {
    ASSERT_TRUE(PutSample(**storage, MakeSample(i, 100'000)).ok());
    if (i >= 10) {
      const SegmentName name = MakeSample(i - 10, 100'000).name();
      ASSERT_EQ(*(*storage)->Delete({&name, 1}), 1u);
    }
    worst = std::max(worst, (*storage)->Stats().physical_bytes);
  }
  // Ten segments, the log, and the rows.
  EXPECT_LE(worst, 10 * 150'000u + (8u << 20));
}

}  // namespace
}  // namespace retroinfer::kvstore
