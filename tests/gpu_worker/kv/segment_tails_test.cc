#include "gpu_worker/kv/segment_tails.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "common/kv/segment_layout.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"

namespace retroinfer {
namespace {

using namespace test_support;
using Tail = SequenceKv::Tail;

constexpr uint32_t kLayers = 2, kHeads = 1, kDim = 64;
constexpr int64_t kTokens = 4000;

class SegmentTailsTest : public testing::TestWithParam<BackendParam> {
 protected:
  SegmentTailsTest() {
    const SegmentLayout layout(geometry_, kDecodeSegmentTokens);
    extent_pages_ = layout.max_pages;
    page_bytes_ = layout.page_bytes;
    arena_ = *backend_->device->AllocateHost(4 * extent_pages_ * page_bytes_);
    device_arena_ = *backend_->device->MapHost(arena_.bytes());
    tails_ = std::make_unique<SegmentTails>(SegmentTails::Parts{.device = backend_->device.get(),
                                                                .stream = backend_->stream.get(),
                                                                .windows = layers_.get(),
                                                                .host_arena = arena_.bytes(),
                                                                .device_arena = device_arena_});
  }
  ~SegmentTailsTest() override { backend_->device->UnmapHost(arena_.bytes()); }

  // Segments of 1024 tokens from the sink on, as many as `total` tokens end.
  std::vector<PlannedSegment> Plan(int64_t total) const {
    std::vector<PlannedSegment> plan;
    for (int64_t begin = kSinkTokens; begin + 1024 <= total; begin += 1024) {
      plan.push_back({begin, 1024, total, total});
    }
    return plan;
  }
  SequenceKv Sequence(size_t num_segments) const {
    SequenceKv sequence;
    sequence.sequence_id = 5;
    sequence.table_row = 0;
    for (size_t i = 0; i < num_segments; ++i) {
      sequence.extents.push_back({.id = i,
                                  .first_page = static_cast<uint32_t>(i) * extent_pages_,
                                  .num_pages = extent_pages_,
                                  .num_tokens = 1024});
    }
    return sequence;
  }
  void TakePart(SequenceKv& sequence, const std::vector<PlannedSegment>& plan, int64_t end) {
    sequence.part = {.begin = 0, .end = end};
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_TRUE(layers_->TakeLayer(sequence, layer, prompt_[layer].view()).ok());
      ASSERT_TRUE(tails_->TakeLayer(sequence, plan, layer, prompt_[layer].view()).ok());
    }
    ASSERT_TRUE(backend_->stream->Synchronize().ok());
  }
  bool IsWritten(size_t segment) const {
    const SegmentLayout layout(geometry_, kDecodeSegmentTokens);
    const size_t begin = (segment * extent_pages_ + layout.tail_page) * page_bytes_;
    const auto tail = arena_.bytes().subspan(begin, layout.tail_bytes);
    return std::ranges::any_of(tail, [](std::byte byte) { return byte != std::byte{0}; });
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  const KvGeometry geometry_{1, kHeads, kDim, kBf16Kv, kLayers, 100};
  std::unique_ptr<WindowLayers> layers_ = *WindowLayers::Create(
      *backend_->device, backend_->ops->attention(), *backend_->stream,
      {.geometry = geometry_, .num_rows = 2, .max_batch = 4, .num_query_heads = 2});
  std::vector<LayerKvImage> prompt_ = [this] {
    std::vector<LayerKvImage> layers;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      layers.emplace_back(data_, RandomNormal(kTokens * kDim, layer),
                          RandomNormal(kTokens * kDim, 9 + layer), kHeads, kDim, kBf16Kv);
    }
    return layers;
  }();
  uint32_t extent_pages_ = 0;
  size_t page_bytes_ = 0;
  HostBuffer arena_;
  DeviceSpan<std::byte> device_arena_;
  std::unique_ptr<SegmentTails> tails_;
};

TEST_P(SegmentTailsTest, APartWritesTheTailsOfSegmentsThatEndInIt) {
  const std::vector<PlannedSegment> plan = Plan(4 + 3 * 1024);
  SequenceKv sequence = Sequence(3);
  TakePart(sequence, plan, 2500);
  EXPECT_EQ(sequence.tails, (std::vector<Tail>{Tail::kThere, Tail::kThere, Tail::kPending}));
  EXPECT_TRUE(IsWritten(0) && IsWritten(1));
  EXPECT_FALSE(IsWritten(2));
  EXPECT_TRUE(*tails_->IsDone(sequence, 1));
  EXPECT_FALSE(*tails_->IsDone(sequence, 2));
  TakePart(sequence, plan, 3500);
  EXPECT_TRUE(IsWritten(2));
  EXPECT_TRUE(*tails_->IsDone(sequence, 2));
  tails_->Forget(sequence);
}

TEST_P(SegmentTailsTest, UntilTheLastLayerNoTailIsThere) {
  const std::vector<PlannedSegment> plan = Plan(4 + 1024);
  SequenceKv sequence = Sequence(1);
  sequence.part = {.begin = 0, .end = 1100};
  ASSERT_TRUE(tails_->TakeLayer(sequence, plan, 0, prompt_[0].view()).ok());
  EXPECT_EQ(sequence.TailOf(0), Tail::kPending);
  EXPECT_FALSE(*tails_->IsDone(sequence, 0));
}

// Cached tokens are in a lane as far as the tails of their own segments go.
TEST_P(SegmentTailsTest, ATailWithinACachedSegmentIsMissing) {
  const std::vector<PlannedSegment> plan = Plan(4 + 3 * 1024);
  SequenceKv sequence = Sequence(3);
  // One segment of 2048 tokens.
  sequence.cached.push_back(
      {.extent = {.num_tokens = 2048}, .name = {}, .token_begin = kSinkTokens});
  TakePart(sequence, plan, 3500);
  EXPECT_EQ(sequence.tails, (std::vector<Tail>{Tail::kMissing, Tail::kThere, Tail::kThere}));
  EXPECT_FALSE(IsWritten(0));
  EXPECT_TRUE(*tails_->IsDone(sequence, 0)) << "it may be committed, without a name";
}

TEST_P(SegmentTailsTest, GeneratedTokensHaveThemSavedFromTheRing) {
  const std::vector<PlannedSegment> plan = Plan(4 + 3 * 1024);
  SequenceKv sequence = Sequence(3);
  TakePart(sequence, plan, 1030);
  ASSERT_EQ(sequence.TailOf(1), Tail::kPending);
  sequence.num_tokens = 2051;
  ASSERT_TRUE(tails_->SaveDue(sequence, plan).ok());
  EXPECT_EQ(sequence.TailOf(1), Tail::kPending) << "the last token is to come";
  sequence.part.end = 2054;  // as generation leaves the ring
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    ASSERT_TRUE(layers_->TakeLayer(sequence, layer, prompt_[layer].view()).ok());
  }
  sequence.num_tokens = 2054;
  ASSERT_TRUE(tails_->SaveDue(sequence, plan).ok());
  ASSERT_TRUE(backend_->stream->Synchronize().ok());
  EXPECT_EQ(sequence.TailOf(1), Tail::kThere);
  EXPECT_TRUE(IsWritten(1));
  sequence.num_tokens = 3900;  // long after its last token
  ASSERT_TRUE(tails_->SaveDue(sequence, plan).ok());
  EXPECT_EQ(sequence.TailOf(2), Tail::kMissing);
  EXPECT_FALSE(IsWritten(2));
}

TEST_P(SegmentTailsTest, RefusesAnotherNumberOfExtents) {
  SequenceKv sequence = Sequence(1);
  sequence.part = {.begin = 0, .end = 1100};
  EXPECT_EQ(tails_->TakeLayer(sequence, Plan(4 + 2048), 0, prompt_[0].view()).code(),
            absl::StatusCode::kInternal);
}

// A store that knows of no tails reserves too little.
TEST_P(SegmentTailsTest, RefusesAnExtentWithoutRoom) {
  SequenceKv sequence = Sequence(1);
  sequence.part = {.begin = 0, .end = 1100};
  --sequence.extents[0].num_pages;
  EXPECT_EQ(tails_->TakeLayer(sequence, Plan(4 + 1024), 0, prompt_[0].view()).code(),
            absl::StatusCode::kInternal);
}

INSTANTIATE_TEST_SUITE_P(Backends, SegmentTailsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
