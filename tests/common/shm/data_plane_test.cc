#include "common/shm/data_plane.h"

#include <gtest/gtest.h>

#include <cstring>
#include <new>

namespace retroinfer {
namespace {

class DataPlaneTest : public testing::Test {
 protected:
  DataPlaneTest()
      : header_(MakeDataPlaneHeader(100, 128, 64, 5000)),
        memory_(
            static_cast<std::byte*>(::operator new (header_.total_bytes, std::align_val_t{4096})),
            header_.total_bytes) {
    std::memset(memory_.data(), 0, memory_.size());
  }
  ~DataPlaneTest() override { ::operator delete (memory_.data(), std::align_val_t{4096}); }

  DataPlaneHeader header_;
  std::span<std::byte> memory_;
};

TEST_F(DataPlaneTest, TwoViewsShareRingsStampsAndCursors) {
  DataPlane store = DataPlane::Format(memory_, header_);
  auto opened = DataPlane::Open(memory_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  DataPlane worker = *opened;
  EXPECT_EQ(worker.num_slots(), 100u);
  EXPECT_EQ(worker.arena_pages(), 5000u);
  EXPECT_EQ(worker.log().capacity(), 128u);
  EXPECT_EQ(worker.requests().capacity(), 64u);

  EXPECT_TRUE(worker.log().TryPush({static_cast<uint32_t>(LogKind::kAdmit), 7, 8, 9}));
  LogEntry entry[2];
  ASSERT_EQ(*store.log().Pop(entry), 1u);
  EXPECT_EQ(entry[0].page, 7u);
  EXPECT_TRUE(store.requests().TryPush({1, 2, 3, 0}));
  EvictionRequest request[2];
  ASSERT_EQ(*worker.requests().Pop(request), 1u);
  EXPECT_EQ(request[0].stamp_seen, 3u);
  worker.stamps()[99] = 42;
  EXPECT_EQ(store.stamps()[99], 42u);
  worker.worker_step() = 5;
  EXPECT_EQ(store.worker_step(), 5u);
  store.stamp_control().requested.value = 6;
  EXPECT_EQ(worker.stamp_control().requested.value, 6u);
}

TEST_F(DataPlaneTest, RefusesEveryChangedHeaderByte) {
  DataPlane::Format(memory_, header_);
  for (size_t i = 0; i < offsetof(DataPlaneHeader, arena_pages); ++i) {
    // A few slots more or less fit into the same pages: the attachment compares their number.
    if (i == offsetof(DataPlaneHeader, num_slots)) continue;
    memory_[i] ^= std::byte{0x80};
    EXPECT_EQ(DataPlane::Open(memory_).status().code(), absl::StatusCode::kInvalidArgument) << i;
    memory_[i] ^= std::byte{0x80};
  }
  EXPECT_TRUE(DataPlane::Open(memory_).ok());
}

TEST_F(DataPlaneTest, RefusesMemoryThatIsTooSmall) {
  DataPlane::Format(memory_, header_);
  EXPECT_FALSE(DataPlane::Open(memory_.first(memory_.size() - 4096)).ok());
  EXPECT_FALSE(DataPlane::Open(memory_.first(100)).ok());
  EXPECT_FALSE(DataPlane::Open({}).ok());
}

TEST_F(DataPlaneTest, RefusesAnArenaOfNoPages) {
  header_.arena_pages = 0;
  DataPlane::Format(memory_, header_);
  EXPECT_FALSE(DataPlane::Open(memory_).ok());
}

TEST(DataPlaneSizesTest, AreLimited) {
  EXPECT_TRUE(DataPlane::ValidateSizes(0, 64, 64).ok());
  EXPECT_TRUE(DataPlane::ValidateSizes(1u << 27, 1u << 26, 1u << 20).ok());
  EXPECT_FALSE(DataPlane::ValidateSizes((1u << 27) + 1, 64, 64).ok());
  EXPECT_FALSE(DataPlane::ValidateSizes(1, 0, 64).ok());
  EXPECT_FALSE(DataPlane::ValidateSizes(1, 96, 64).ok());
  EXPECT_FALSE(DataPlane::ValidateSizes(1, 1u << 27, 64).ok());
  EXPECT_FALSE(DataPlane::ValidateSizes(1, 64, 32).ok());
  EXPECT_FALSE(DataPlane::ValidateSizes(1, 64, 1u << 21).ok());
}

TEST(DataPlaneSizesTest, OfSeveralPlanesAreLimitedInSum) {
  constexpr uint32_t kSlots = 1u << 27, kLog = 1u << 26, kRequests = 1u << 20;
  EXPECT_TRUE(DataPlane::ValidatePlanes(1, kSlots, kLog, kRequests).ok());
  EXPECT_TRUE(DataPlane::ValidatePlanes(4, kSlots, kLog, kRequests).ok());
  EXPECT_FALSE(DataPlane::ValidatePlanes(5, kSlots, 64, 64).ok());
  EXPECT_FALSE(DataPlane::ValidatePlanes(5, 1, kLog, 64).ok());
  EXPECT_FALSE(DataPlane::ValidatePlanes(5, 1, 64, kRequests).ok());
  EXPECT_TRUE(DataPlane::ValidatePlanes(16, kSlots / 4, kLog / 4, kRequests / 4).ok());
  EXPECT_FALSE(DataPlane::ValidatePlanes(0, 1, 64, 64).ok());
  EXPECT_FALSE(DataPlane::ValidatePlanes(17, 1, 64, 64).ok());
  EXPECT_FALSE(DataPlane::ValidatePlanes(2, 1, 65, 64).ok());
  for (uint32_t planes = 1; planes <= 16; ++planes) {
    const uint32_t log = DataPlane::LogCapacityFor(kSlots / 4, planes);
    const uint32_t requests = DataPlane::RequestCapacityFor(kSlots / 4, planes);
    EXPECT_TRUE(DataPlane::ValidatePlanes(planes, kSlots / 4, log, requests).ok()) << planes;
    EXPECT_GE(log, kLog / 4);
  }
}

TEST(DataPlaneSizesTest, CapacitiesGrowWithTheCache) {
  for (const uint32_t slots : {0u, 1u, 1000u, (1u << 20) + 1, 15'000'000u, 1u << 27}) {
    const uint32_t log = DataPlane::LogCapacityFor(slots);
    const uint32_t requests = DataPlane::RequestCapacityFor(slots);
    EXPECT_TRUE(DataPlane::ValidateSizes(slots, log, requests).ok()) << slots;
    if (slots <= 15'000'000) {
      EXPECT_GE(log, 2 * slots);
      EXPECT_GE(requests, slots / 20) << "what the store asks for in one round";
    }
  }
}

}  // namespace
}  // namespace retroinfer
