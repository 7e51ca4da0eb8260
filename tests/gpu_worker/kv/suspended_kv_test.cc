#include "gpu_worker/kv/suspended_kv.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/time/clock.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

class SuspendedKvTest : public testing::TestWithParam<BackendParam> {
 protected:
  SuspendedKvTest() {
    memory_ = *KvMemory::Create(*backend_->device, {.geometry = geometry_,
                                                    .dense_blocks = 12,
                                                    .meta_blocks = 1,
                                                    .max_sequences = 3,
                                                    .max_model_len = 1024});
    kv_ = *SuspendedKv::Create(*backend_->device, *backend_->stream, *memory_, 6);
  }
  DeviceSpan<std::byte> Block(DenseBlockId block) {
    const size_t bytes = DensePoolView::BlockBytes(geometry_);
    return memory_->dense_pool().bytes.subspan(static_cast<size_t>(block) * bytes, bytes);
  }
  void Fill(DenseBlockId block, uint8_t value) {
    const std::vector<std::byte> bytes(DensePoolView::BlockBytes(geometry_), std::byte{value});
    ASSERT_TRUE(backend_->device->Upload(*backend_->stream, bytes, Block(block)).ok());
    ASSERT_TRUE(backend_->stream->Synchronize().ok());
  }
  // The block's byte, which all of it has.
  int Value(DenseBlockId block) {
    std::vector<std::byte> bytes(DensePoolView::BlockBytes(geometry_));
    EXPECT_TRUE(backend_->device->Download(*backend_->stream, Block(block), bytes).ok());
    EXPECT_TRUE(backend_->stream->Synchronize().ok());
    for (const std::byte byte : bytes) {
      if (byte != bytes[0]) return -1;
    }
    return static_cast<int>(bytes[0]);
  }
  void Wait(const SuspendedKv::Copy& copy) {
    const absl::Time give_up = absl::Now() + absl::Seconds(60);
    while (!*kv_->IsDone(copy)) ASSERT_LT(absl::Now(), give_up);
  }

  const KvGeometry geometry_{.num_layers = 2, .num_kv_heads = 1, .head_dim = 64, .format = kBf16Kv};
  std::unique_ptr<Backend> backend_ = GetParam().create();
  std::unique_ptr<KvMemory> memory_;
  std::unique_ptr<SuspendedKv> kv_;
};

TEST_P(SuspendedKvTest, BlocksThatHoldTokensAreCounted) {
  SequenceKv sequence;
  sequence.num_tokens = 3;  // not even the sink is full
  EXPECT_EQ(kv_->BlocksOf(sequence), 1);
  sequence.num_tokens = kSinkTokens + 1;
  EXPECT_EQ(kv_->BlocksOf(sequence), 2);
  sequence.num_tokens = kSinkTokens + 64;
  EXPECT_EQ(kv_->BlocksOf(sequence), 2);
  sequence.num_tokens = 5000;
  sequence.window_begin = 5000 - 65;
  EXPECT_EQ(kv_->BlocksOf(sequence), 3);
}

TEST_P(SuspendedKvTest, AResumedSequenceHasTheSameBytesInOtherBlocks) {
  SequenceKv sequence, other;
  const KvNeed need{.dense_blocks = 5};
  ASSERT_TRUE(memory_->Reserve(need, sequence));
  sequence.num_tokens = kSinkTokens + 2 * 64 + 1;  // in four of the five
  const std::vector<DenseBlockId> blocks = sequence.dense_blocks;
  for (size_t i = 0; i < blocks.size(); ++i) Fill(blocks[i], static_cast<uint8_t>(10 + i));
  auto copy = kv_->CopyOut(sequence);
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(copy->host_blocks.size(), 4u);
  EXPECT_EQ(kv_->num_free(), 2);
  EXPECT_EQ(kv_->bytes_in_use(), 4 * DensePoolView::BlockBytes(geometry_));
  EXPECT_EQ(kv_->bytes_in_use(), SuspendedKv::HostBytesOf(geometry_, 4));
  Wait(*copy);
  memory_->Free(sequence);
  // Somebody else has the blocks meanwhile, and goes on having some of them.
  ASSERT_TRUE(memory_->Reserve(need, other));
  for (const DenseBlockId block : other.dense_blocks) Fill(block, 99);
  ASSERT_TRUE(memory_->Reserve(need, sequence));
  ASSERT_NE(sequence.dense_blocks, blocks);
  ASSERT_TRUE(kv_->CopyBack(sequence, *copy, [](Stream&) { return absl::OkStatus(); }).ok());
  Wait(*copy);
  kv_->Free(*copy);
  EXPECT_EQ(kv_->num_free(), 6);
  EXPECT_EQ(kv_->bytes_in_use(), 0u);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(Value(sequence.dense_blocks[i]), 10 + static_cast<int>(i));
  for (const DenseBlockId block : other.dense_blocks) EXPECT_EQ(Value(block), 99);
  // The device knows the new ones.
  std::vector<int32_t> row(5);
  ASSERT_TRUE(backend_->device
                  ->Download(*backend_->stream,
                             {reinterpret_cast<const std::byte*>(
                                  memory_->tables().Dense(sequence.table_row).device_data()),
                              row.size() * sizeof(int32_t)},
                             std::as_writable_bytes(std::span(row)))
                  .ok());
  ASSERT_TRUE(backend_->stream->Synchronize().ok());
  EXPECT_EQ(row, sequence.dense_blocks);
}

TEST_P(SuspendedKvTest, TwoAreKeptApart) {
  SequenceKv a, b;
  const KvNeed need{.dense_blocks = 3};
  ASSERT_TRUE(memory_->Reserve(need, a));
  ASSERT_TRUE(memory_->Reserve(need, b));
  a.num_tokens = b.num_tokens = kSinkTokens + 128;
  for (const DenseBlockId block : a.dense_blocks) Fill(block, 1);
  for (const DenseBlockId block : b.dense_blocks) Fill(block, 2);
  auto copy_a = kv_->CopyOut(a);
  auto copy_b = kv_->CopyOut(b);
  ASSERT_TRUE(copy_a.ok() && copy_b.ok());
  Wait(*copy_b);
  memory_->Free(a);
  memory_->Free(b);
  ASSERT_TRUE(memory_->Reserve(need, b));
  ASSERT_TRUE(memory_->Reserve(need, a));
  ASSERT_TRUE(kv_->CopyBack(a, *copy_a, [](Stream&) { return absl::OkStatus(); }).ok());
  ASSERT_TRUE(kv_->CopyBack(b, *copy_b, [](Stream&) { return absl::OkStatus(); }).ok());
  Wait(*copy_b);
  for (const DenseBlockId block : a.dense_blocks) EXPECT_EQ(Value(block), 1);
  for (const DenseBlockId block : b.dense_blocks) EXPECT_EQ(Value(block), 2);
}

// A ring of window layers is copied with the blocks, in pieces of their size, to whichever row the
// sequence gets.
TEST_P(SuspendedKvTest, AResumedSequenceHasItsRing) {
  const KvGeometry geometry{2, 1, 64, kBf16Kv, 3, 100};
  const auto windows = *WindowLayers::Create(
      *backend_->device, backend_->ops->attention(), *backend_->stream,
      {.geometry = geometry, .num_rows = 3, .max_batch = 2, .num_query_heads = 1});
  kv_ = *SuspendedKv::Create(*backend_->device, *backend_->stream, *memory_, 12, windows.get());
  SequenceKv sequence, other;
  const KvNeed need{.dense_blocks = 2};
  ASSERT_TRUE(memory_->Reserve(need, sequence));
  sequence.num_tokens = 3;
  const auto ring = RandomNormal(windows->ring_bytes() / sizeof(float), 4);
  ASSERT_TRUE(backend_->device
                  ->Upload(*backend_->stream, std::as_bytes(std::span(ring)),
                           windows->Ring(sequence.table_row))
                  .ok());
  const size_t block_bytes = DensePoolView::BlockBytes(geometry_);
  const auto ring_blocks =
      static_cast<int32_t>((windows->ring_bytes() + block_bytes - 1) / block_bytes);
  EXPECT_EQ(kv_->BlocksOf(sequence), 1 + ring_blocks);
  auto copy = kv_->CopyOut(sequence);
  ASSERT_TRUE(copy.ok()) << copy.status();
  Wait(*copy);
  const int32_t row = sequence.table_row;
  memory_->Free(sequence);
  ASSERT_TRUE(memory_->Reserve(need, other));
  ASSERT_TRUE(memory_->Reserve(need, sequence));
  ASSERT_NE(sequence.table_row, row);
  ASSERT_TRUE(kv_->CopyBack(sequence, *copy, [](Stream&) { return absl::OkStatus(); }).ok());
  Wait(*copy);
  std::vector<float> got(ring.size());
  ASSERT_TRUE(backend_->device
                  ->Download(*backend_->stream, windows->Ring(sequence.table_row),
                             std::as_writable_bytes(std::span(got)))
                  .ok());
  ASSERT_TRUE(backend_->stream->Synchronize().ok());
  EXPECT_EQ(got, ring);
  kv_->Free(*copy);
}

INSTANTIATE_TEST_SUITE_P(Backends, SuspendedKvTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
