#include "gpu_worker/kv/sequence_segments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <tuple>

#include "common/kv/segment_layout.h"
#include "tests/support/backends.h"
#include "tests/support/data_plane_memory.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"
#include "tests/support/settled_stats.h"
#include "tests/support/tend_cache.h"

namespace retroinfer {
namespace {

using namespace test_support;
using testing::ElementsAre;

constexpr uint32_t kLayers = 2, kKvHeads = 2, kHeadDim = 64;
constexpr uint32_t kSlots = 4000, kArenaPages = 8000;
constexpr int64_t kPrompt = 2200;  // sink, two segments of 1024 tokens, window of 148

class SequenceSegmentsTest : public testing::TestWithParam<BackendParam> {
 protected:
  SequenceSegmentsTest() : arena_(size_t{kArenaPages} * kPageBytes) {
    Device& device = *backend_->device;
    cache_ =
        *BlockCache::Create(device, backend_->ops->block_cache(), *backend_->stream,
                            {.num_slots = kSlots, .num_transient = 64}, arena_, plane_.bytes());
    memory_ = *KvMemory::Create(device, {.geometry = geometry_,
                                         .dense_blocks = 60,
                                         .meta_blocks = 12,
                                         .max_sequences = 3,
                                         .max_model_len = 4096});
    const WaveIndexSettings settings{.dense_below = 1500, .kmeans_rounds = 2};
    SequenceSegments::Parts parts{.device = &device,
                                  .ops = &backend_->ops->index(),
                                  .stream = backend_->stream.get(),
                                  .memory = memory_.get(),
                                  .cache = cache_.get()};
    parts.builder = *SegmentBuilder::Create(
        device, *backend_->ops, *backend_->background, memory_->meta_pool(),
        {.host = arena_, .device = cache_->device_arena()}, settings, {.max_open_segments = 8});
    parts.on_built = [this](const SequenceKv& sequence, size_t segment, int64_t token_begin) {
      built_.emplace_back(sequence.sequence_id, segment, token_begin);
    };
    segments_ = *SequenceSegments::Create(settings, std::move(parts));
  }

  // With extents of its own, or those of `other` as cached ones.
  std::unique_ptr<SequenceKv> Admit(uint64_t id, const SequenceKv* other = nullptr) {
    auto sequence = std::make_unique<SequenceKv>();
    sequence->sequence_id = id;
    sequence->prompt_tokens = kPrompt;
    sequence->part.end = kPrompt;
    sequence->total_tokens = kPrompt + 20;
    const KvNeed need = segments_->Need(kPrompt, kPrompt + 20);
    RI_CHECK(memory_->Reserve(need, *sequence));
    for (size_t i = 0; i < need.segment_tokens.size(); ++i) {
      const uint32_t pages = SegmentLayout(geometry_, need.segment_tokens[i]).max_pages;
      sequence->extents.push_back({next_extent_++, next_page_, pages, need.segment_tokens[i]});
      next_page_ += pages;
    }
    if (other != nullptr) {
      sequence->extents = other->extents;
      sequence->num_cached_segments = other->extents.size();
    }
    return sequence;
  }
  void Prefill(SequenceKv& sequence) {
    ASSERT_TRUE(segments_->Begin(sequence).ok());
    const size_t count = static_cast<size_t>(kPrompt) * kKvHeads * kHeadDim;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const LayerKvImage kv(data_, RandomNormal(count, layer), RandomNormal(count, 7 + layer),
                            kKvHeads, kHeadDim, DType::kBf16);
      ASSERT_TRUE(segments_->TakeLayer(sequence, layer, kv.view()).ok());
      while (!*segments_->LayerTaken(sequence, layer)) std::this_thread::yield();
    }
    while (!*segments_->PromptIsBuilt(sequence)) std::this_thread::yield();
    segments_->FinishPrompt(sequence);
  }
  void Release(SequenceKv& sequence) {
    while (!*segments_->Release(sequence)) ASSERT_TRUE(Tend(*cache_).ok());
    memory_->Free(sequence);
  }
  uint32_t SlotsUsed() { return SettledStats(*cache_, *backend_->stream).num_used_slots; }

  const KvGeometry geometry_{kLayers, kKvHeads, kHeadDim, kBf16Kv};
  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  std::vector<std::byte> arena_;
  DataPlaneMemory plane_{kSlots, 1 << 16, 64, kArenaPages};
  std::unique_ptr<BlockCache> cache_;
  std::unique_ptr<KvMemory> memory_;
  std::vector<std::tuple<uint64_t, size_t, int64_t>> built_;
  std::unique_ptr<SequenceSegments> segments_;
  uint64_t next_extent_ = 1;
  PageId next_page_ = 0;
};

TEST_P(SequenceSegmentsTest, APromptsSegmentsAreBuiltAndTold) {
  const auto sequence = Admit(5);
  EXPECT_FALSE(segments_->NothingToBuild(*sequence));
  Prefill(*sequence);
  EXPECT_THAT(built_, ElementsAre(std::tuple(5, 0, 4), std::tuple(5, 1, 4 + 1024)));
  EXPECT_EQ(sequence->window_begin, 4 + 2048);
  EXPECT_EQ(sequence->num_indexed_blocks, 2);
  EXPECT_EQ(segments_->builder().num_open(), 0);
  EXPECT_EQ(segments_->num_late(), 0u);
  sequence->num_tokens = kPrompt;
  EXPECT_FALSE(segments_->GoesLive(*sequence));
  EXPECT_FALSE(*segments_->BeginStep(*sequence)) << "no block changed its place";
  Release(*sequence);
  EXPECT_EQ(SlotsUsed(), 0u);
}

TEST_P(SequenceSegmentsTest, WhatIsNeededForAWhileGrowsIntoWhatIsNeededAtAll) {
  for (const int64_t prompt : {int64_t{50}, int64_t{1500}, int64_t{kPrompt}}) {
    const int64_t total = prompt + 3000;
    const KvNeed all = segments_->Need(prompt, total);
    const KvBlocks whole = segments_->NeedWhile(
        {.prompt_tokens = prompt, .total_tokens = total, .from = prompt, .to = total});
    EXPECT_EQ(whole, (KvBlocks{all.dense_blocks, all.meta_blocks}));
    KvBlocks before;
    for (int64_t to = prompt; to <= total; ++to) {
      const KvBlocks need = segments_->NeedWhile(
          {.prompt_tokens = prompt, .total_tokens = total, .from = prompt, .to = to});
      EXPECT_GE(need.dense, before.dense);
      EXPECT_GE(need.meta, before.meta);
      before = need;
    }
    // The step from build_at on begins the next segment.
    for (const PlannedSegment& segment :
         PlanSegments(prompt, total, segments_->settings().dense_below)) {
      if (segment.live_at == prompt) continue;
      const auto meta = [&](int64_t to) {
        return segments_
            ->NeedWhile({.prompt_tokens = prompt, .total_tokens = total, .from = to, .to = to})
            .meta;
      };
      EXPECT_LT(meta(segment.build_at), meta(segment.build_at + 1));
    }
  }
}

TEST_P(SequenceSegmentsTest, OneIndexHoldsUntilTheNextSegmentGoesLive) {
  // Two segments end at 2052; the next one is built at 3140 and live 64 tokens later.
  EXPECT_FALSE(segments_->AnyGoesLive(kPrompt, 3204));
  EXPECT_TRUE(segments_->AnyGoesLive(kPrompt, 3205));
  const auto sequence = Admit(5);
  Prefill(*sequence);
  sequence->num_tokens = kPrompt;
  EXPECT_GT(segments_->TokensOfOneIndex(*sequence), 1 << 20) << "none is planned";
  Release(*sequence);
}

TEST_P(SequenceSegmentsTest, PagesStayAsLongAsAnySequenceUsesThem) {
  const auto first = Admit(1);
  Prefill(*first);
  while (SlotsUsed() == 0) ASSERT_TRUE(Tend(*cache_).ok());
  const auto second = Admit(2, first.get());
  EXPECT_TRUE(segments_->NothingToBuild(*second));
  Prefill(*second);
  EXPECT_EQ(second->num_indexed_blocks, 2);
  EXPECT_EQ(built_.size(), 2u) << "only the first one's";
  Release(*first);
  EXPECT_GT(SlotsUsed(), 0u);
  Release(*second);
  EXPECT_EQ(SlotsUsed(), 0u);
}

TEST_P(SequenceSegmentsTest, ASequenceThatEndsEarlyLeavesNothing) {
  const auto never_begun = Admit(1);
  EXPECT_TRUE(*segments_->Release(*never_begun));
  const auto halfway = Admit(2);
  ASSERT_TRUE(segments_->Begin(*halfway).ok());
  EXPECT_EQ(segments_->builder().num_open(), 2);
  Release(*halfway);
  EXPECT_EQ(segments_->builder().num_open(), 0);
  EXPECT_EQ(SlotsUsed(), 0u);
  EXPECT_TRUE(built_.empty());
}

TEST_P(SequenceSegmentsTest, RefusesExtentsThatAreNotThePlans) {
  const auto sequence = Admit(1);
  sequence->extents.pop_back();
  EXPECT_EQ(segments_->Begin(*sequence).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(*segments_->Release(*sequence)) << "it has not begun";
}

INSTANTIATE_TEST_SUITE_P(Backends, SequenceSegmentsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
