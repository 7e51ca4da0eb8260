// Blocks that are saved lie in the arena as they lay in device memory, and a reader of cached KV
// gives back what they held.
#include "gpu_worker/engine/block_saver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/kv/block_layout.h"
#include "tests/support/backends.h"
#include "tests/support/fake_segment_store.h"

namespace retroinfer {
namespace {

using namespace test_support;

constexpr int64_t kTokens = kSinkTokens + 3 * 64 + 20;

class BlockSaverTest : public testing::Test {
 protected:
  explicit BlockSaverTest(uint32_t arena_pages = 1000) : store_(geometry_, arena_pages) {
    memory_ = *KvMemory::Create(*backend_->device, {.geometry = geometry_,
                                                    .dense_blocks = 12,
                                                    .meta_blocks = 1,
                                                    .max_sequences = 3,
                                                    .max_model_len = 1024});
    copier_ = *BlockCopier::Create(*backend_->device, *backend_->stream, *memory_, store_.arena());
    saver_ = std::make_unique<BlockSaver>(BlockSaver::Parts{
        .store = &store_,
        .copy =
            [this](const StepCommand::Save& save) {
              EXPECT_EQ(save.id, sequence_.sequence_id);
              return copier_->Begin(save.save_id, sequence_, save.blocks);
            },
        .is_copied = [this](uint64_t save_id) { return copier_->IsDone(save_id); },
        .end_copy = [this](uint64_t save_id) { copier_->End(save_id); }});
    std::iota(prompt_.begin(), prompt_.end(), 0);
    prefix_ = NamePrefix(prompt_, 1 << 20, "model", "salt");
    sequence_.sequence_id = 1;
    sequence_.prompt = prompt_;
    sequence_.num_tokens = sequence_.prompt_tokens = kTokens;
    sequence_.lineage = KvLineage(prefix_, prompt_, std::nullopt);
    sequence_.lineage.SetCached({}, 0);
    EXPECT_TRUE(memory_->Reserve(KvBlocks{.dense = 5}, sequence_));
    std::vector<std::byte> bytes(memory_->dense_pool().bytes.size());
    std::mt19937 random(7);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 64);  // no NaN
    EXPECT_TRUE(
        backend_->device->Upload(*backend_->stream, bytes, memory_->dense_pool().bytes).ok());
    EXPECT_TRUE(backend_->stream->Synchronize().ok());
  }
  std::vector<NamedBlock> Blocks(int64_t end = kTokens) {
    return sequence_.lineage.Blocks(0, {}, kSinkTokens, end, kSinkTokens);
  }
  // Gives the answer back as the engine does, and waits for the copies.
  void Save(uint64_t id, std::vector<NamedBlock> blocks) {
    absl::Notification answered;
    absl::StatusOr<std::vector<Extent>> extents;
    saver_->Save(sequence_, id, std::move(blocks), [&](absl::StatusOr<std::vector<Extent>> answer) {
      extents = std::move(answer);
      answered.Notify();
    });
    answered.WaitForNotification();
    EXPECT_TRUE(saver_->TakeAnswer(id, extents));
    while (saver_->busy()) saver_->Tend();
  }
  std::vector<Extent> Find() {
    std::vector<Extent> found;
    ReserveRequest request{.sequence_id = 99};
    RowsWanted& rows = request.rows.emplace();
    rows.token_begin = kSinkTokens;
    rows.texts = prefix_.texts;
    rows.token_ids.assign(prompt_.begin() + kSinkTokens, prompt_.end());
    store_.Reserve(std::move(request), [&](absl::StatusOr<std::vector<Extent>> extents) {
      EXPECT_TRUE(extents.ok()) << extents.status();
      if (extents.ok()) found = *std::move(extents);
    });
    return found;
  }

  const KvGeometry geometry_{.num_layers = 2, .num_kv_heads = 2, .head_dim = 64, .format = kF32Kv};
  std::unique_ptr<Backend> backend_ = AvailableBackends().front().create();  // the CPU
  FakeSegmentStore store_;
  std::unique_ptr<KvMemory> memory_;
  std::unique_ptr<BlockCopier> copier_;
  std::unique_ptr<BlockSaver> saver_;
  std::vector<int32_t> prompt_ = std::vector<int32_t>(static_cast<size_t>(kTokens));
  NamedPrefix prefix_;
  SequenceKv sequence_;
};

TEST_F(BlockSaverTest, BlocksLieInTheArenaAsTheyLayInDeviceMemory) {
  Save(50, Blocks());
  EXPECT_EQ(saver_->counters().saved_blocks, 4u);
  EXPECT_EQ(store_.num_sequences(), 0u);
  const std::vector<Extent> extents = Find();
  ASSERT_EQ(extents.size(), 4u);
  const size_t block_bytes = DensePoolView::BlockBytes(geometry_);
  for (size_t i = 0; i < extents.size(); ++i) {
    EXPECT_EQ(extents[i].num_tokens, i < 3 ? 64u : 20u);
    std::vector<std::byte> dense(block_bytes);
    const auto block = static_cast<size_t>(sequence_.dense_blocks[i + 1]);
    ASSERT_TRUE(
        backend_->device
            ->Download(*backend_->stream,
                       memory_->dense_pool().bytes.subspan(block * block_bytes, block_bytes), dense)
            .ok());
    ASSERT_TRUE(backend_->stream->Synchronize().ok());
    const size_t begin = size_t{extents[i].first_page + BlockLayout(geometry_).first_kv_page} *
                         geometry_.page_bytes();
    EXPECT_TRUE(std::ranges::equal(store_.arena().subspan(begin, block_bytes), dense)) << i;
  }
}

TEST_F(BlockSaverTest, WhatIsThereIsNotCopiedAgain) {
  Save(50, Blocks(kSinkTokens + 2 * 64));
  Save(51, Blocks());
  EXPECT_EQ(saver_->counters().saved_blocks, 4u);
  EXPECT_EQ(store_.num_committed(), 4u);
}

TEST_F(BlockSaverTest, WithoutAStoreNothingIsSaved) {
  store_.set_attached(false);
  Save(50, Blocks());
  EXPECT_EQ(saver_->counters().saved_blocks, 0u);
  EXPECT_EQ(saver_->counters().unsaved_blocks, 4u);
  EXPECT_FALSE(saver_->IsSaving(1));
  store_.set_attached(true);
  EXPECT_TRUE(Find().empty());
}

TEST_F(BlockSaverTest, ASequenceKeepsItsBlocksUntilTheyAreSaved) {
  store_.HoldAnswers();
  absl::StatusOr<std::vector<Extent>> extents;
  saver_->Save(sequence_, 50, Blocks(),
               [&](absl::StatusOr<std::vector<Extent>> answer) { extents = std::move(answer); });
  EXPECT_TRUE(saver_->IsSaving(1));
  EXPECT_FALSE(saver_->IsSaving(2));
  EXPECT_EQ(saver_->Tend(), 0u);
  store_.LetAnswersGo();
  EXPECT_FALSE(saver_->TakeAnswer(51, extents));
  EXPECT_TRUE(saver_->TakeAnswer(50, extents));
  while (saver_->IsSaving(1)) saver_->Tend();
  EXPECT_EQ(Find().size(), 4u);
}

class SmallArenaTest : public BlockSaverTest {
 protected:
  SmallArenaTest() : BlockSaverTest(100) {}  // room for one block
};

TEST_F(SmallArenaTest, WithoutRoomNothingIsSaved) {
  Save(50, Blocks());
  EXPECT_EQ(saver_->counters().unsaved_blocks, 4u);
  Save(51, Blocks(kSinkTokens + 64));
  EXPECT_EQ(saver_->counters().saved_blocks, 1u);
}

TEST_F(BlockSaverTest, AnAnswerThatCannotBeIsRefused) {
  absl::StatusOr<std::vector<Extent>> extents;
  const auto save = [&](uint64_t id) {
    saver_->Save(sequence_, id, Blocks(),
                 [&](absl::StatusOr<std::vector<Extent>> answer) { extents = std::move(answer); });
  };
  save(50);
  extents->pop_back();
  EXPECT_TRUE(saver_->TakeAnswer(50, extents));
  save(51);
  extents->front().num_pages = 3;
  EXPECT_TRUE(saver_->TakeAnswer(51, extents));
  save(52);
  extents->front().first_page = 990;
  EXPECT_TRUE(saver_->TakeAnswer(52, extents));
  EXPECT_FALSE(saver_->busy());
  EXPECT_EQ(saver_->counters().saved_blocks, 0u);
}

}  // namespace
}  // namespace retroinfer
