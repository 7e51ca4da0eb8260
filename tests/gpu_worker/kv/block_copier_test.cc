// Blocks lie in the arena as they lie in device memory, and what cannot be copied is not begun.
#include "gpu_worker/kv/block_copier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "common/kv/block_layout.h"
#include "tests/support/backends.h"

namespace retroinfer {
namespace {

using namespace test_support;

class BlockCopierTest : public testing::TestWithParam<BackendParam> {
 protected:
  BlockCopierTest() {
    memory_ = *KvMemory::Create(*backend_->device, {.geometry = geometry_,
                                                    .dense_blocks = 12,
                                                    .meta_blocks = 1,
                                                    .max_sequences = 3,
                                                    .max_model_len = 1024});
    copier_ = *BlockCopier::Create(*backend_->device, *backend_->stream, *memory_, arena_);
    sequence_.sequence_id = 7;
    sequence_.window_begin = kSinkTokens + 1024;
    EXPECT_TRUE(memory_->Reserve(KvBlocks{.dense = 4}, sequence_));
    std::vector<std::byte> bytes(memory_->dense_pool().bytes.size());
    std::mt19937 random(7);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 64);
    EXPECT_TRUE(
        backend_->device->Upload(*backend_->stream, bytes, memory_->dense_pool().bytes).ok());
  }
  BlockCopier::Block Block(int64_t index, PageId first_page, uint32_t num_tokens = 64) const {
    return {.token_begin = sequence_.window_begin + index * kDenseBlockTokens,
            .num_tokens = num_tokens,
            .extent = {.first_page = first_page, .num_pages = pages_, .num_tokens = num_tokens}};
  }
  std::vector<std::byte> Dense(size_t index) {
    const size_t size = DensePoolView::BlockBytes(geometry_);
    std::vector<std::byte> bytes(size);
    const auto block = static_cast<size_t>(sequence_.dense_blocks[index]);
    EXPECT_TRUE(backend_->device
                    ->Download(*backend_->stream,
                               memory_->dense_pool().bytes.subspan(block * size, size), bytes)
                    .ok());
    EXPECT_TRUE(backend_->stream->Synchronize().ok());
    return bytes;
  }

  const KvGeometry geometry_{.num_layers = 2, .num_kv_heads = 2, .head_dim = 64, .format = kF32Kv};
  const uint32_t pages_ = BlockLayout(geometry_).num_pages;
  std::unique_ptr<test_support::Backend> backend_ = GetParam().create();
  std::vector<std::byte> arena_ = std::vector<std::byte>(size_t{1000} * kPageBytes);
  std::unique_ptr<KvMemory> memory_;
  std::unique_ptr<BlockCopier> copier_;
  SequenceKv sequence_;
};

TEST_P(BlockCopierTest, ImagesAreWhatTheBlocksHold) {
  const BlockCopier::Block blocks[] = {Block(0, 10), Block(2, 10 + pages_, 20)};
  ASSERT_TRUE(copier_->Begin(5, sequence_, blocks).ok());
  EXPECT_TRUE(copier_->Has(5));
  EXPECT_TRUE(copier_->IsCopying(7));
  EXPECT_FALSE(copier_->IsCopying(5));
  while (!copier_->IsDone(5).value()) std::this_thread::yield();
  copier_->End(5);
  EXPECT_FALSE(copier_->Has(5));
  EXPECT_FALSE(copier_->IsCopying(7));
  const BlockLayout layout(geometry_);
  for (const auto& [first_page, index] : {std::pair(10u, 1u), std::pair(10 + pages_, 3u)}) {
    const std::vector<std::byte> dense = Dense(index);
    const auto image = std::span(arena_).subspan(
        size_t{first_page + layout.first_kv_page} * geometry_.page_bytes(), dense.size());
    EXPECT_TRUE(std::ranges::equal(image, dense)) << index;
  }
  BlockHeader header;
  std::memcpy(&header, arena_.data() + (10 + pages_) * geometry_.page_bytes(), sizeof(header));
  EXPECT_EQ(header.magic, kBlockMagic);
  EXPECT_EQ(header.num_tokens, 20u);
  EXPECT_EQ(header.token_begin, static_cast<uint64_t>(Block(2, 0).token_begin));
}

// Processes that have one head each write together what one process writes for both.
TEST_P(BlockCopierTest, AnImageOfSeveralWritersIsThatOfOne) {
  const BlockCopier::Block whole = Block(1, 10), parts = Block(1, 10 + pages_);
  const auto copy = [this](BlockCopier& copier, const BlockCopier::Block& block) {
    ASSERT_TRUE(copier.Begin(5, sequence_, std::span(&block, 1)).ok());
    while (!copier.IsDone(5).value()) std::this_thread::yield();
  };
  ASSERT_NO_FATAL_FAILURE(copy(*copier_, whole));
  const std::vector<std::byte> dense = Dense(2);
  KvGeometry of_rank = geometry_;
  of_rank.num_kv_heads = 1;
  const size_t run_bytes = DensePoolView::RunBytes(of_rank);
  for (const uint32_t head : {1u, 0u}) {
    const auto memory = *KvMemory::Create(*backend_->device, {.geometry = of_rank,
                                                              .heads = {head, 1, 2},
                                                              .dense_blocks = 12,
                                                              .meta_blocks = 1,
                                                              .max_sequences = 3,
                                                              .max_model_len = 1024});
    std::vector<std::byte> bytes(2 * run_bytes);
    for (size_t layer = 0; layer < 2; ++layer) {
      std::ranges::copy(std::span(dense).subspan((2 * layer + head) * run_bytes, run_bytes),
                        bytes.begin() + static_cast<ptrdiff_t>(layer * run_bytes));
    }
    const auto at = static_cast<size_t>(sequence_.dense_blocks[2]) * bytes.size();
    ASSERT_TRUE(
        backend_->device
            ->Upload(*backend_->stream, bytes, memory->dense_pool().bytes.subspan(at, bytes.size()))
            .ok());
    const auto copier = *BlockCopier::Create(*backend_->device, *backend_->stream, *memory, arena_);
    ASSERT_NO_FATAL_FAILURE(copy(*copier, parts));
    const std::byte first = arena_[(10 + pages_) * geometry_.page_bytes()];
    EXPECT_EQ(first != std::byte{0}, head == 0) << "the header is the first head's";
  }
  const auto image = [this](uint32_t first_page) {
    return std::span(arena_).subspan(size_t{first_page} * geometry_.page_bytes(),
                                     size_t{pages_} * geometry_.page_bytes());
  };
  EXPECT_TRUE(std::ranges::equal(image(10), image(10 + pages_)));
}

TEST_P(BlockCopierTest, WhatCannotBeIsRefusedAndNothingIsUnderWay) {
  const auto begin = [this](BlockCopier::Block block) {
    return copier_->Begin(5, sequence_, std::span(&block, 1));
  };
  EXPECT_FALSE(begin(Block(-1, 10)).ok()) << "in front of the window";
  EXPECT_FALSE(begin(Block(3, 10)).ok()) << "behind its blocks";
  EXPECT_FALSE(begin(Block(0, 10, 0)).ok());
  EXPECT_FALSE(begin(Block(0, 10, 65)).ok());
  BlockCopier::Block off = Block(0, 10);
  off.token_begin += 1;
  EXPECT_FALSE(begin(off).ok());
  EXPECT_FALSE(begin(Block(0, 1000 - pages_ + 1)).ok()) << "beyond the arena";
  BlockCopier::Block small = Block(0, 10);
  small.extent.num_pages = pages_ - 1;
  EXPECT_FALSE(begin(small).ok());
  EXPECT_FALSE(copier_->Has(5));
  EXPECT_FALSE(copier_->IsCopying(7));
  ASSERT_TRUE(begin(Block(0, 10)).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(begin(Block(1, 10 + pages_))));
}

INSTANTIATE_TEST_SUITE_P(Backends, BlockCopierTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
