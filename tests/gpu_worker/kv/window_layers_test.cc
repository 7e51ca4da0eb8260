#include "gpu_worker/kv/window_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "common/kv/segment_layout.h"
#include "gpu_worker/kv/layer_map.h"
#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"

namespace retroinfer {
namespace {

using namespace test_support;

TEST(LayerMapTest, EachKindCountsItsOwnLayers) {
  const int32_t windows[] = {128, 0, 128, 64, 0};
  const LayerMap map(5, windows);
  EXPECT_EQ(map.num_layers(), 5u);
  const bool is_window[] = {true, false, true, true, false};
  const uint32_t numbers[] = {0, 0, 1, 2, 1};
  for (uint32_t layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(map[layer].is_window, is_window[layer]) << layer;
    EXPECT_EQ(map[layer].number, numbers[layer]) << layer;
  }
  const LayerMap plain(3);
  EXPECT_FALSE(plain[2].is_window);
  EXPECT_EQ(plain[2].number, 2u);
}

constexpr uint32_t kLayers = 2, kHeads = 2, kDim = 64;
constexpr int32_t kWindow = 100, kBatch = 4;
constexpr int64_t kTokens = 1200;

class WindowLayersTest : public testing::TestWithParam<BackendParam> {
 protected:
  WindowLayersTest() {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      keys_.push_back(RandomNormal(kHeads * kTokens * kDim, 10 + layer));
      values_.push_back(RandomNormal(kHeads * kTokens * kDim, 20 + layer));
      prompt_.emplace_back(data_, keys_[layer], values_[layer], kHeads, kDim, kBf16Kv);
    }
  }

  SequenceKv Sequence(int32_t row, int64_t begin, int64_t end) const {
    SequenceKv sequence;
    sequence.table_row = row;
    sequence.part = {.begin = begin, .end = end};
    sequence.num_tokens = end;
    return sequence;
  }
  // An empty lane.
  LayerKvImage Empty() {
    const std::vector<float> nothing(kHeads * kTokens * kDim, kNan);
    return LayerKvImage(data_, nothing, nothing, kHeads, kDim, kBf16Kv);
  }
  // Rows [begin, end) of `kv` on the device are those of the prompt, and no other row is there.
  void ExpectRows(const LayerKvImage& kv, uint32_t layer, int64_t begin, int64_t end) {
    const size_t elements = kHeads * kTokens * kDim;
    for (const bool is_key : {true, false}) {
      std::byte* const from = is_key ? kv.view().keys : kv.view().values;
      std::vector<std::byte> bytes(elements * 2);
      ASSERT_TRUE(backend_->device->Download(*backend_->stream, {from, bytes.size()}, bytes).ok());
      ASSERT_TRUE(backend_->stream->Synchronize().ok());
      const std::vector<float> got = FromBytes(bytes, DType::kBf16);
      for (uint32_t head = 0; head < kHeads; ++head) {
        for (int64_t token = 0; token < kTokens; ++token) {
          const float* const want =
              is_key ? prompt_[layer].Key(head, token) : prompt_[layer].Value(head, token);
          const float value = got[static_cast<size_t>((head * kTokens + token) * kDim) + 7];
          const bool is_there = token >= begin && token < end;
          ASSERT_EQ(std::isnan(value), !is_there) << "token " << token;
          if (is_there) {
            ASSERT_EQ(value, want[7]) << "token " << token;
          }
        }
      }
    }
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  const KvGeometry geometry_{3, kHeads, kDim, kBf16Kv, kLayers, kWindow};
  std::unique_ptr<WindowLayers> layers_ = *WindowLayers::Create(
      *backend_->device, backend_->ops->attention(), *backend_->stream,
      {.geometry = geometry_, .num_rows = 3, .max_batch = kBatch, .num_query_heads = 2 * kHeads});
  std::vector<std::vector<float>> keys_, values_;
  std::vector<LayerKvImage> prompt_;
};

TEST_P(WindowLayersTest, ARingGivesBackWhatTheNextPartSees) {
  for (const int64_t end : {1, 64, 99, 100, 128, 227, 228, 1000, 1200}) {
    const SequenceKv taken = Sequence(1, 0, end);
    const SequenceKv next = Sequence(1, end, end + 1);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_TRUE(layers_->TakeLayer(taken, layer, prompt_[layer].view()).ok());
    }
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const LayerKvImage lane = Empty();
      ASSERT_TRUE(layers_->ReadContext(next, layer, lane.view()).ok());
      ExpectRows(lane, layer, geometry_.WindowBegin(end), end);
    }
  }
}

TEST_P(WindowLayersTest, ATailIsTheSameFromAPromptAndFromARing) {
  const size_t bytes = SegmentLayout(geometry_, 1024).tail_bytes;
  for (const int64_t end : {4 + 64, 260, 1028}) {
    const DeviceBuffer written = data_.Upload(std::vector<std::byte>(bytes));
    std::vector<std::byte> saved(bytes);
    // Generation has gone on since.
    SequenceKv sequence = Sequence(2, 0, end + kBatch);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_TRUE(layers_->TakeLayer(sequence, layer, prompt_[layer].view()).ok());
      ASSERT_TRUE(layers_->WriteTail(layer, prompt_[layer].view(), end, written.bytes()).ok());
    }
    if (geometry_.WindowBegin(end) == geometry_.WindowBegin(end + kBatch)) {
      ASSERT_TRUE(layers_->SaveTail(sequence, end, saved).ok());
      ASSERT_TRUE(backend_->stream->Synchronize().ok());
    }
    const DeviceBuffer from_ring = data_.Upload(saved);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (const DeviceBuffer* tail : {&written, &from_ring}) {
        const LayerKvImage lane = Empty();
        ASSERT_TRUE(layers_->ReadTail(layer, lane.view(), end, tail->bytes()).ok());
        ExpectRows(lane, layer, geometry_.WindowBegin(end), end);
      }
    }
  }
}

// Processes that have one head each write together what one process writes for both, and read it.
TEST_P(WindowLayersTest, ATailOfSeveralWritersIsThatOfOne) {
  constexpr int64_t kEnd = 1024;  // all of the last block
  const SegmentLayout layout(geometry_, 1024);
  const auto empty = [&] { return data_.Upload(std::vector<std::byte>(layout.tail_bytes)); };
  const DeviceBuffer whole = empty(), written = empty();
  std::vector<std::byte> whole_saved(layout.tail_bytes), saved(layout.tail_bytes);
  SequenceKv sequence = Sequence(1, 0, kEnd);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    ASSERT_TRUE(layers_->TakeLayer(sequence, layer, prompt_[layer].view()).ok());
    ASSERT_TRUE(layers_->WriteTail(layer, prompt_[layer].view(), kEnd, whole.bytes()).ok());
  }
  ASSERT_TRUE(layers_->SaveTail(sequence, kEnd, whole_saved).ok());
  KvGeometry of_rank = geometry_;
  of_rank.num_kv_heads = 1;
  const size_t head_size = kTokens * kDim;
  for (const uint32_t head : {1u, 0u}) {
    const auto rank =
        *WindowLayers::Create(*backend_->device, backend_->ops->attention(), *backend_->stream,
                              {.geometry = of_rank,
                               .num_rows = 3,
                               .max_batch = kBatch,
                               .num_query_heads = 2,
                               .heads = {head, 1, 2}});
    EXPECT_EQ(rank->arena_geometry(), geometry_);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const auto of = [&](const std::vector<float>& all) {
        return std::span(all).subspan(head * head_size, head_size);
      };
      const LayerKvImage kv(data_, of(keys_[layer]), of(values_[layer]), 1, kDim, kBf16Kv);
      ASSERT_TRUE(rank->TakeLayer(sequence, layer, kv.view()).ok());
      ASSERT_TRUE(rank->WriteTail(layer, kv.view(), kEnd, written.bytes()).ok());
      // What one process has written for both heads.
      const std::vector<float> nothing(head_size, kNan);
      const LayerKvImage lane(data_, nothing, nothing, 1, kDim, kBf16Kv);
      ASSERT_TRUE(rank->ReadTail(layer, lane.view(), kEnd, whole.bytes()).ok());
      const auto read = data_.Download<uint16_t>(DeviceSpan<const uint16_t>(
          reinterpret_cast<const uint16_t*>(lane.view().keys), head_size));
      const auto want = data_.Download<uint16_t>(
          DeviceSpan<const uint16_t>(reinterpret_cast<const uint16_t*>(kv.view().keys), head_size));
      const int64_t begin = geometry_.WindowBegin(kEnd);
      for (int64_t i = begin * kDim; i < kEnd * kDim; ++i) {
        ASSERT_EQ(read[static_cast<size_t>(i)], want[static_cast<size_t>(i)]) << i / kDim;
      }
    }
    ASSERT_TRUE(rank->SaveTail(sequence, kEnd, saved).ok());
    ASSERT_TRUE(backend_->stream->Synchronize().ok());
  }
  EXPECT_EQ(data_.Download<std::byte>(written), data_.Download<std::byte>(whole));
  EXPECT_EQ(saved, whole_saved);
}

TEST_P(WindowLayersTest, KnowsHowLongItHoldsATail) {
  for (const int64_t end : {4, 1028, 2052, 8196}) {
    EXPECT_TRUE(layers_->Holds(end, end));
    EXPECT_TRUE(layers_->Holds(end + kBatch, end)) << "a step may go as far behind it";
    EXPECT_FALSE(layers_->Holds(end + 1000, end));
  }
}

// Rows of a step: three of one sequence, one of another; each sees its window alone.
TEST_P(WindowLayersTest, AStepAttendsToTheWindow) {
  constexpr int32_t kQuerySize = 2 * kHeads * kDim;
  for (const int64_t end : {1, 98, 99, 100, 127, 1000}) {
    SequenceKv one = Sequence(0, 0, end), other = Sequence(2, 0, 700);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_TRUE(layers_->TakeLayer(one, layer, prompt_[layer].view()).ok());
      ASSERT_TRUE(layers_->TakeLayer(other, layer, prompt_[layer].view()).ok());
    }
    SequenceKv* const batch[] = {&one, &one, &one, &other};
    const int64_t positions[] = {end, end + 1, end + 2, 700};
    ASSERT_TRUE(layers_->BeginStep(batch).ok());
    ASSERT_TRUE(layers_->UploadStep().ok());
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      std::vector<float> keys, values;
      for (const int64_t position : positions) {
        for (uint32_t head = 0; head < kHeads; ++head) {
          const float* key = prompt_[layer].Key(head, position);
          const float* value = prompt_[layer].Value(head, position);
          keys.insert(keys.end(), key, key + kDim);
          values.insert(values.end(), value, value + kDim);
        }
      }
      const auto queries =
          FromBytes(ToBytes(RandomNormal(4 * kQuerySize, 77), DType::kBf16), DType::kBf16);
      const auto q = data_.Activations(queries, 4, kQuerySize);
      const auto k = data_.Activations(keys, 4, kHeads * kDim);
      const auto v = data_.Activations(values, 4, kHeads * kDim);
      const auto out = data_.Poisoned(4, kQuerySize);
      const int32_t window = layer == 0 ? kWindow : 30;
      const absl::Status status = layers_->DecodeLayer(layer, {.scale = 0.125f, .window = window},
                                                       q.view, k.view, v.view, out.view);
      ASSERT_TRUE(status.ok()) << status;
      std::vector<double> want(4 * kQuerySize);
      for (size_t row = 0; row < 4; ++row) {
        for (uint32_t head = 0; head < 2 * kHeads; ++head) {
          const size_t at = row * kQuerySize + head * kDim;
          double sum = 0;
          for (int64_t t = std::max<int64_t>(0, positions[row] + 1 - window); t <= positions[row];
               ++t) {
            double dot = 0;
            for (size_t i = 0; i < kDim; ++i) {
              dot += double{queries[at + i]} * prompt_[layer].Key(head / 2, t)[i];
            }
            const double weight = std::exp(dot / 8);
            sum += weight;
            for (size_t i = 0; i < kDim; ++i) {
              want[at + i] += weight * prompt_[layer].Value(head / 2, t)[i];
            }
          }
          for (size_t i = 0; i < kDim; ++i) want[at + i] /= sum;
        }
      }
      EXPECT_LE(RelativeError(data_.Values(out), want), 1.0 / 256) << end << ", layer " << layer;
    }
  }
}

TEST_P(WindowLayersTest, TakesWhatItsNeedSays) {
  if (backend_->device->info().backend != "cpu") GTEST_SKIP() << "the needs are the CPU's";
  const size_t before = backend_->device->allocated_bytes(MemoryPurpose::kDenseKv);
  const WindowLayers::Sizes sizes{
      .geometry = geometry_, .num_rows = 5, .max_batch = 3, .num_query_heads = 4};
  const auto layers = *WindowLayers::Create(*backend_->device, backend_->ops->attention(),
                                            *backend_->stream, sizes);
  EXPECT_EQ(backend_->device->allocated_bytes(MemoryPurpose::kDenseKv) - before,
            WindowLayers::MemoryOf(sizes, kCpuNeeds)[MemoryPurpose::kDenseKv]);
  EXPECT_EQ(layers->ring_bytes(), WindowLayers::RingBytes(geometry_, 3));
  EXPECT_EQ(WindowLayers::MemoryOf({.geometry = {3, kHeads, kDim, kBf16Kv}}, kCpuNeeds).total(),
            0u);
}

INSTANTIATE_TEST_SUITE_P(Backends, WindowLayersTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
