#include "common/shm/sealed_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace retroinfer::common {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// A memfd as a hostile peer could make it.
UniqueFd MakeMemfd(off_t bytes, bool allocate, int seals) {
  UniqueFd fd(::memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), bytes), 0);
  if (allocate && bytes > 0) {
    EXPECT_EQ(::posix_fallocate(fd.get(), 0, bytes), 0);
  }
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

absl::StatusCode AdoptCode(UniqueFd fd, uint64_t bytes_max = kMiB) {
  return SealedMemory::Adopt(std::move(fd), bytes_max).status().code();
}

TEST(SealedMemoryTest, IsZeroSealedAndAllocated) {
  auto memory = SealedMemory::Create("test", 40 * kMiB, /*num_threads=*/3);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->bytes().size(), 40 * kMiB);
  EXPECT_TRUE(std::all_of(memory->bytes().begin(), memory->bytes().end(),
                          [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_NE(::ftruncate(memory->fd(), 4096), 0);
  EXPECT_NE(::ftruncate(memory->fd(), 80 * kMiB), 0);
  EXPECT_NE(::fcntl(memory->fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_NE(::fcntl(memory->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SealedMemoryTest, BothSidesSeeTheSameBytes) {
  auto memory = SealedMemory::Create("test", kMiB, 1);
  ASSERT_TRUE(memory.ok());
  auto adopted = SealedMemory::Adopt(UniqueFd(::dup(memory->fd())), kMiB);
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  memory->bytes()[12345] = std::byte{7};
  EXPECT_EQ(adopted->bytes()[12345], std::byte{7});
}

TEST(SealedMemoryTest, MovesKeepTheMapping) {
  auto memory = SealedMemory::Create("test", kMiB, 1);
  ASSERT_TRUE(memory.ok());
  const std::byte* data = memory->bytes().data();
  SealedMemory moved = *std::move(memory);
  EXPECT_EQ(moved.bytes().data(), data);
  SealedMemory other;
  EXPECT_FALSE(other.valid());
  other = std::move(moved);
  EXPECT_EQ(other.bytes().data(), data);
  other.bytes()[0] = std::byte{1};
}

TEST(SealedMemoryTest, SaysHowMuchMemoryItWanted) {
  const uint64_t bytes = 1ull << 50;
  const auto memory = SealedMemory::Create("test", bytes, 1);
  ASSERT_FALSE(memory.ok());
  EXPECT_NE(memory.status().message().find(absl::StrCat(bytes)), absl::string_view::npos);
}

TEST(SealedMemoryTest, CanBeStoppedWhileItIsMade) {
  AllocationWatch watch;
  watch.stop = true;
  EXPECT_TRUE(absl::IsCancelled(SealedMemory::Create("test", 256 * kMiB, 2, &watch).status()));
  EXPECT_EQ(watch.done_bytes, 0u);
  watch.stop = false;
  EXPECT_TRUE(SealedMemory::Create("test", 100 * kMiB, 3, &watch).ok());
  EXPECT_EQ(watch.done_bytes, 2 * 100 * kMiB);
}

TEST(SealedMemoryTest, RefusesWhatIsNotTheMemoryItExpects) {
  EXPECT_EQ(AdoptCode(UniqueFd()), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AdoptCode(UniqueFd(::open("/dev/zero", O_RDWR))), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AdoptCode(UniqueFd(::open("/proc/self/exe", O_RDONLY))),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AdoptCode(MakeMemfd(kMiB, true, 0)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AdoptCode(MakeMemfd(kMiB, true, F_SEAL_GROW | F_SEAL_SEAL)),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AdoptCode(MakeMemfd(kMiB, true, kAllSeals | F_SEAL_WRITE)),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AdoptCode(MakeMemfd(kMiB, false, kAllSeals)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AdoptCode(MakeMemfd(0, true, kAllSeals)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AdoptCode(MakeMemfd(5000, true, kAllSeals)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AdoptCode(MakeMemfd(2 * kMiB, true, kAllSeals)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AdoptCode(MakeMemfd(kMiB, true, kAllSeals)), absl::StatusCode::kOk);
}

TEST(SealedMemoryTest, RefusesADescriptorThatIsReadOnly) {
  UniqueFd fd = MakeMemfd(kMiB, true, kAllSeals);
  UniqueFd read_only(::open(absl::StrCat("/proc/self/fd/", fd.get()).c_str(), O_RDONLY));
  ASSERT_TRUE(read_only.valid());
  EXPECT_EQ(AdoptCode(std::move(read_only)), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace retroinfer::common
