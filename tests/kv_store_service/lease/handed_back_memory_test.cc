#include "kv_store_service/lease/handed_back_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/kv_store_service/lease/plane_fixture.h"
#include "tests/kv_store_service/segment_writer.h"

namespace retroinfer::kvstore {
namespace {

TEST(HandedBackMemoryTest, IsMappedIfItFitsAndRefusedElse) {
  const auto plane = MakePlanes();
  const Arena arena(*common::SealedMemory::Create("test arena", 100 * kPageBytes, 1));
  const AttachParameters declared{kTinyGeometry, "model", 16, 64, 64, true};
  const auto adopt = [&](int arena_fd, int plane_fd, uint64_t bytes_max) {
    return AdoptHandedBackMemory(common::UniqueFd(::dup(arena_fd)), CopiesOf({plane_fd}), declared,
                                 bytes_max, Watermarks());
  };
  const auto memory = adopt(arena.fd(), plane->fd(0), 1 << 20);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_TRUE(memory->arena->IsSameMemory(arena));
  EXPECT_TRUE(absl::IsInvalidArgument(adopt(arena.fd(), plane->fd(0), 4096).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(adopt(plane->fd(0), arena.fd(), 1 << 20).status()));
  const common::UniqueFd null(::open("/dev/null", O_RDWR));
  EXPECT_TRUE(absl::IsInvalidArgument(adopt(null.get(), plane->fd(0), 1 << 20).status()));
}

}  // namespace
}  // namespace retroinfer::kvstore
