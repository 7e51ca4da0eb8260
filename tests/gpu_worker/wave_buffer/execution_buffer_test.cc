#include "gpu_worker/wave_buffer/execution_buffer.h"

#include <gtest/gtest.h>

#include "common/kv/segment_layout.h"
#include "tests/support/backends.h"

namespace retroinfer {
namespace {

TEST(ExecutionBufferTest, HoldsAllPagesOfAnySegment) {
  for (const uint32_t head_dim : kHeadDims) {
    for (const KvFormat& format : kKvFormats) {
      const KvGeometry geometry{1, 1, head_dim, format};
      for (const uint32_t tokens : {1024u, 8192u}) {
        EXPECT_GE(ExecutionBuffer::MaxPages(geometry, tokens / 16),
                  SegmentLayout(geometry, tokens).max_pages_per_head);
      }
    }
  }
}

TEST(ExecutionBufferTest, ViewsAreForTheBatch) {
  const auto backend = test_support::AvailableBackends()[0].create();
  const auto buffer = ExecutionBuffer::Create(*backend->device, {2, 3, 128, kBf16Kv}, 4, 64);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->max_pages(), 64 * 19 / 4);
  EXPECT_EQ(buffer->pages(2).size(), 2u * 3 * 304);
}

}  // namespace
}  // namespace retroinfer
