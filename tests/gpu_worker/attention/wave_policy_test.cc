#include "gpu_worker/attention/wave_policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <tuple>

#include "absl/synchronization/notification.h"
#include "common/kv/segment_layout.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "tests/support/allocation_count.h"
#include "tests/support/backends.h"
#include "tests/support/data_plane_memory.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"
#include "tests/support/settled_stats.h"
#include "tests/support/tend_cache.h"

namespace retroinfer {
namespace {

using namespace test_support;

constexpr uint32_t kLayers = 2, kKvHeads = 2, kHeadDim = 64;
constexpr int32_t kQueryHeads = 4, kMaxBatch = 3;
const AttentionForm kForm{.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim))};
constexpr int64_t kKvSize = kKvHeads * kHeadDim, kQuerySize = kQueryHeads * kHeadDim;
constexpr uint32_t kSlots = 4000, kArenaPages = 30'000;

// A sequence with its KV as the test made it: [layer][token][kv_heads * head_dim], bf16-rounded.
struct TestSequence {
  SequenceKv kv;
  std::vector<std::vector<float>> keys = std::vector<std::vector<float>>(kLayers);
  std::vector<std::vector<float>> values = std::vector<std::vector<float>>(kLayers);
  uint64_t seed = 0;
};

class WavePolicyTest : public testing::TestWithParam<BackendParam> {
 protected:
  // Contexts of `dense_below` tokens and more are indexed.
  explicit WavePolicyTest(int64_t dense_below = 1500) : arena_(size_t{kArenaPages} * kPageBytes) {
    cache_ =
        *BlockCache::Create(*backend_->device, backend_->ops->block_cache(), *backend_->stream,
                            {.num_slots = kSlots, .num_transient = 64}, arena_, plane_.bytes());
    memory_ = *KvMemory::Create(*backend_->device, {.geometry = geometry_,
                                                    .dense_blocks = 120,
                                                    .meta_blocks = 24,
                                                    .max_sequences = kMaxBatch + 1,
                                                    .max_model_len = 8192});
    SequenceSegments::Parts parts{.device = backend_->device.get(),
                                  .ops = &backend_->ops->index(),
                                  .stream = backend_->stream.get(),
                                  .memory = memory_.get(),
                                  .cache = cache_.get()};
    const WaveIndexSettings settings{.dense_below = dense_below, .kmeans_rounds = 2};
    parts.builder = *SegmentBuilder::Create(
        *backend_->device, *backend_->ops, *backend_->background, memory_->meta_pool(),
        {.host = arena_, .device = cache_->device_arena()}, settings, {.max_open_segments = 8});
    auto decode = *WaveDecode::Create(
        *backend_->device, *backend_->ops, *backend_->stream, *cache_, memory_->dense_pool(),
        memory_->meta_pool(),
        {.num_query_heads = kQueryHeads, .max_batch = kMaxBatch, .max_tokens = 8192});
    parts.on_built = [this](const SequenceKv& sequence, size_t segment, int64_t token_begin) {
      built_.emplace_back(sequence.sequence_id, sequence.extents[segment].id, token_begin);
    };
    segments_ = *SequenceSegments::Create(settings, std::move(parts));
    policy_ = *WavePolicy::Create(kMaxBatch, {.device = backend_->device.get(),
                                              .ops = &backend_->ops->attention(),
                                              .stream = backend_->stream.get(),
                                              .memory = memory_.get(),
                                              .segments = segments_.get(),
                                              .decode = std::move(decode)});
  }

  std::vector<float> RoundedNormal(size_t size, uint64_t seed) {
    return FromBytes(ToBytes(RandomNormal(size, seed), DType::kBf16), DType::kBf16);
  }

  // Reserves everything and prefills layer by layer, as the engine does.
  std::unique_ptr<TestSequence> Begin(uint64_t id, int64_t prompt, int64_t total,
                                      double retrieval) {
    auto sequence = std::make_unique<TestSequence>();
    sequence->seed = 1000 * id;
    sequence->kv.sequence_id = id;
    sequence->kv.prompt_tokens = prompt;
    sequence->kv.total_tokens = total;
    sequence->kv.settings.retrieval_ratio = retrieval;
    const KvNeed need = policy_->Need(sequence->kv.settings, prompt, total);
    RI_CHECK(memory_->Reserve(need, sequence->kv));
    for (const uint32_t tokens : need.segment_tokens) {
      const uint32_t pages = SegmentLayout(geometry_, tokens).max_pages;
      sequence->kv.extents.push_back({next_extent_++, next_page_, pages, tokens});
      next_page_ += pages;
    }
    return sequence;
  }
  void TakeLayer(TestSequence& sequence, uint32_t layer) {
    const size_t count = static_cast<size_t>(sequence.kv.prompt_tokens * kKvSize);
    sequence.keys[layer] = RoundedNormal(count, sequence.seed + layer);
    sequence.values[layer] = RoundedNormal(count, sequence.seed + 10 + layer);
    // [tokens][heads][d] -> [heads][tokens][d]
    std::vector<float> keys(count), values(count);
    for (size_t i = 0; i < count; ++i) {
      const size_t token = i / kKvSize, head = i % kKvSize / kHeadDim, j = i % kHeadDim;
      const size_t at =
          (head * static_cast<size_t>(sequence.kv.prompt_tokens) + token) * kHeadDim + j;
      keys[at] = sequence.keys[layer][i];
      values[at] = sequence.values[layer][i];
    }
    const LayerKvImage kv(data_, keys, values, kKvHeads, kHeadDim, DType::kBf16);
    sequence.kv.part = policy_->NextPart(sequence.kv, sequence.kv.prompt_tokens);
    ASSERT_TRUE(policy_->TakeLayer(sequence.kv, layer, kv.view()).ok());
    // The image goes away: wait as the engine does before it uses the buffer again.
    while (!*policy_->LayerTaken(sequence.kv, layer)) std::this_thread::yield();
  }
  void Prefill(TestSequence& sequence) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) TakeLayer(sequence, layer);
    while (!*policy_->FinishPrefill(sequence.kv)) std::this_thread::yield();
    EXPECT_EQ(sequence.kv.num_tokens, sequence.kv.prompt_tokens);
  }

  // One step of a batch; outputs [layer][row * query size].
  std::vector<std::vector<float>> Step(const std::vector<TestSequence*>& batch) {
    std::vector<SequenceKv*> sequences;
    for (TestSequence* sequence : batch) sequences.push_back(&sequence->kv);
    EXPECT_TRUE(BeginTendedStep(*cache_).ok());
    EXPECT_TRUE(policy_->BeginStep(sequences).ok());
    EXPECT_TRUE(policy_->UploadStep().ok());
    std::vector<std::vector<float>> outputs;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      std::vector<float> queries, keys, values;
      for (TestSequence* sequence : batch) {
        const auto seed = static_cast<uint64_t>(sequence->kv.num_tokens) * 100 + layer;
        const auto append = [](std::vector<float>& to, const std::vector<float>& from) {
          to.insert(to.end(), from.begin(), from.end());
        };
        const auto key = RoundedNormal(kKvSize, sequence->seed + seed + 1);
        const auto value = RoundedNormal(kKvSize, sequence->seed + seed + 2);
        append(sequence->keys[layer], key);
        append(sequence->values[layer], value);
        append(keys, key);
        append(values, value);
        append(queries, RandomNormal(kQuerySize, sequence->seed + seed + 3));
      }
      const auto rows = static_cast<int64_t>(batch.size());
      const auto q = data_.Activations(queries, rows, kQuerySize);
      const auto k = data_.Activations(keys, rows, kKvSize);
      const auto v = data_.Activations(values, rows, kKvSize);
      const auto out = data_.Poisoned(rows, kQuerySize);
      EXPECT_TRUE(policy_->DecodeLayer(layer, kForm, q.view, k.view, v.view, out.view).ok());
      outputs.push_back(data_.Values(out));
    }
    EXPECT_TRUE(policy_->DownloadStep().ok());
    EXPECT_TRUE(policy_->EndStep().ok());
    EXPECT_TRUE(backend_->stream->Synchronize().ok());
    DrainLog();
    return outputs;
  }

  // Exact attention of the step that has just ended, in doubles.
  std::vector<double> Exact(const TestSequence& sequence, uint32_t layer) {
    const auto seed = static_cast<uint64_t>(sequence.kv.num_tokens - 1) * 100 + layer;
    const auto queries = RandomNormal(kQuerySize, sequence.seed + seed + 3);
    std::vector<double> out(kQuerySize);
    for (size_t head = 0; head < kQueryHeads; ++head) {
      const size_t offset = head / (kQueryHeads / kKvHeads) * kHeadDim;
      double sum = 0;
      for (size_t t = 0; t < static_cast<size_t>(sequence.kv.num_tokens); ++t) {
        const float* key = sequence.keys[layer].data() + t * kKvSize + offset;
        const float* value = sequence.values[layer].data() + t * kKvSize + offset;
        double dot = 0;
        for (size_t j = 0; j < kHeadDim; ++j) dot += double{queries[head * kHeadDim + j]} * key[j];
        const double weight = std::exp(dot / std::sqrt(double{kHeadDim}));
        sum += weight;
        for (size_t j = 0; j < kHeadDim; ++j) out[head * kHeadDim + j] += weight * value[j];
      }
      for (size_t j = 0; j < kHeadDim; ++j) out[head * kHeadDim + j] /= sum;
    }
    return out;
  }

  void DrainLog() {
    DataPlane store = plane_.view();
    std::vector<LogEntry> entries(1024);
    while (*store.log().Pop(std::span(entries)) > 0) continue;
  }
  void ReleaseAndFree(TestSequence& sequence) {
    while (!*policy_->Release(sequence.kv)) {
      ASSERT_TRUE(Tend(*cache_).ok());
      DrainLog();
    }
    memory_->Free(sequence.kv);
  }
  void ExpectNothingIsHeld() {
    EXPECT_EQ(memory_->dense_blocks().num_used(), 0);
    EXPECT_EQ(memory_->meta_blocks().num_used(), 0);
    EXPECT_EQ(segments_->builder().num_open(), 0);
    EXPECT_EQ(SettledStats(*cache_, *backend_->stream).num_used_slots, 0u);
  }

  const KvGeometry geometry_{kLayers, kKvHeads, kHeadDim, kBf16Kv};
  // Of f32 sums; where activations are bf16, of rounding queries and outputs.
  double Tolerance() const {
    return backend_->ops->model().activation_dtype() == DType::kBf16 ? 1.0 / 128 : 1e-5;
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  std::vector<std::byte> arena_;
  DataPlaneMemory plane_{kSlots, 1 << 14, 64, kArenaPages};
  std::unique_ptr<BlockCache> cache_;
  std::unique_ptr<KvMemory> memory_;
  std::unique_ptr<SequenceSegments> segments_;
  std::unique_ptr<WavePolicy> policy_;
  PageId next_page_ = 0;
  uint64_t next_extent_ = 1;
  std::vector<std::tuple<uint64_t, uint64_t, int64_t>> built_;
};

// A prompt with two segments grows by two more; with everything retrieved each step is exact.
TEST_P(WavePolicyTest, RetrievingEverythingIsExactWhileSegmentsAreAdded) {
  const auto sequence = Begin(1, 2300, 5000, 1.0);
  Prefill(*sequence);
  EXPECT_EQ(sequence->kv.num_indexed_blocks, 2);
  EXPECT_EQ(sequence->kv.window_begin, 4 + 2048);
  int32_t blocks = 2;
  for (int64_t step = 0; step < 2000; ++step) {
    const auto outputs = Step({sequence.get()});
    const bool segment_added = sequence->kv.num_indexed_blocks != blocks;
    blocks = sequence->kv.num_indexed_blocks;
    if (!segment_added && step % 250 != 0) continue;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_LT(RelativeError(outputs[layer], Exact(*sequence, layer)), Tolerance())
          << "step " << step;
    }
  }
  EXPECT_EQ(blocks, 4);
  EXPECT_EQ(sequence->kv.window_begin, 4 + 4096);
  EXPECT_EQ(built_, (decltype(built_){{1, 1, 4}, {1, 2, 1028}, {1, 3, 2052}, {1, 4, 3076}}));
  ReleaseAndFree(*sequence);
  ExpectNothingIsHeld();
}

TEST_P(WavePolicyTest, ADenseSequenceIsExactAndIsIndexedWhenItGrows) {
  const auto sequence = Begin(1, 1400, 1700, 1.0);
  Prefill(*sequence);
  EXPECT_EQ(sequence->kv.num_indexed_blocks, 0);
  for (int64_t step = 0; step < 250; ++step) {
    const auto outputs = Step({sequence.get()});
    // Live at 1500 + 64 tokens.
    EXPECT_EQ(sequence->kv.num_indexed_blocks, step < 164 ? 0 : 1);
    if (step % 41 != 0) continue;
    ASSERT_LT(RelativeError(outputs[0], Exact(*sequence, 0)), Tolerance()) << "step " << step;
  }
  ReleaseAndFree(*sequence);
  ExpectNothingIsHeld();
}

TEST_P(WavePolicyTest, ASequenceIsReadyUnlessItsNextSegmentIsLate) {
  auto* const background = dynamic_cast<CpuStream*>(backend_->background.get());
  if (background == nullptr) GTEST_SKIP() << "only the CPU's background can be stopped";
  const auto sequence = Begin(1, 1400, 1700, 1.0);
  Prefill(*sequence);
  absl::Notification go;
  ASSERT_TRUE(background->Launch([&go](ThreadPool&) { go.WaitForNotification(); }).ok());
  while (sequence->kv.num_tokens < 1500 + 64) {  // where it goes live
    ASSERT_TRUE(*policy_->ReadyForStep(sequence->kv)) << sequence->kv.num_tokens;
    Step({sequence.get()});
  }
  EXPECT_FALSE(*policy_->ReadyForStep(sequence->kv));
  EXPECT_FALSE(*policy_->ReadyForStep(sequence->kv));
  EXPECT_EQ(segments_->num_late(), 1u) << "counted once";
  go.Notify();
  ASSERT_TRUE(backend_->background->Synchronize().ok());
  EXPECT_TRUE(*policy_->ReadyForStep(sequence->kv));
  Step({sequence.get()});
  EXPECT_EQ(sequence->kv.num_indexed_blocks, 1);
  EXPECT_EQ(segments_->num_late(), 1u);
  ReleaseAndFree(*sequence);
  ExpectNothingIsHeld();
}

TEST_P(WavePolicyTest, ASequenceGivesTheSameInABatchAndAlone) {
  std::vector<std::vector<std::vector<float>>> alone;
  {
    const auto sequence = Begin(2, 2500, 3200, 0.05);
    Prefill(*sequence);
    for (int i = 0; i < 150; ++i) alone.push_back(Step({sequence.get()}));
    ReleaseAndFree(*sequence);
  }
  const auto first = Begin(1, 3, 400, 0.05);
  const auto second = Begin(2, 2500, 3200, 0.05);
  const auto third = Begin(3, 1600, 2400, 0.05);
  for (TestSequence* sequence : {first.get(), second.get(), third.get()}) Prefill(*sequence);
  for (size_t i = 0; i < 150; ++i) {
    const auto together = Step({first.get(), second.get(), third.get()});
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const std::vector<float> row(together[layer].begin() + kQuerySize,
                                   together[layer].begin() + 2 * kQuerySize);
      ASSERT_EQ(row, alone[i][layer]) << "step " << i;
    }
  }
  for (TestSequence* sequence : {first.get(), second.get(), third.get()}) ReleaseAndFree(*sequence);
  ExpectNothingIsHeld();
}

TEST_P(WavePolicyTest, TheFirstStepFindsTheNewSegmentsInSlots) {
  const auto sequence = Begin(1, 2300, 2500, 1.0);
  Prefill(*sequence);
  const auto outputs = Step({sequence.get()});
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_LT(RelativeError(outputs[layer], Exact(*sequence, layer)), Tolerance());
  }
  const BlockCacheStats stats = SettledStats(*cache_, *backend_->stream);
  EXPECT_GT(stats.counters.hits, 1000u);
  // One task between two steps: what it did not come to is admitted by the step itself.
  EXPECT_GT(stats.counters.fills, stats.counters.admissions);
  ReleaseAndFree(*sequence);
  ExpectNothingIsHeld();
}

TEST_P(WavePolicyTest, ReleasesASequenceAtAnyMoment) {
  const auto untouched = Begin(1, 2300, 2500, 1.0);
  ReleaseAndFree(*untouched);
  const auto in_prefill = Begin(2, 2300, 2500, 1.0);
  TakeLayer(*in_prefill, 0);
  ReleaseAndFree(*in_prefill);
  const auto building = Begin(3, 2300, 5000, 1.0);
  Prefill(*building);
  while (segments_->builder().num_open() == 0) Step({building.get()});
  ReleaseAndFree(*building);
  ExpectNothingIsHeld();
}

TEST_P(WavePolicyTest, ReadsFewerBytesThanFullAttention) {
  const auto sequence = Begin(1, 6200, 6300, 0.02);
  Prefill(*sequence);
  Step({sequence.get()});
  const AttentionPolicy::BytesRead bytes = policy_->LastStepBytes(0);
  EXPECT_EQ(bytes.full, 6201.0 * static_cast<double>(geometry_.token_bytes()));
  EXPECT_LT(bytes.read, 0.5 * bytes.full);
  EXPECT_GT(bytes.read, 0);
  ReleaseAndFree(*sequence);
}

TEST_P(WavePolicyTest, TheZoneGrowsWhileMoreIsUnseenThanMayBe) {
  const auto limited = Begin(1, 6200, 6300, 0.02), free = Begin(2, 6200, 6300, 0.02);
  limited->kv.settings.max_unseen_mass = 0.3;
  Prefill(*limited);
  Prefill(*free);
  EXPECT_EQ(policy_->RowsTogether(limited->kv), 1);
  EXPECT_FALSE(policy_->CanRewind(limited->kv.settings, 6200, 6210));
  EXPECT_GT(policy_->RowsTogether(free->kv), 1);
  const auto step = [&] {
    Step({limited.get(), free.get()});
    policy_->LearnFromStep();
  };
  step();
  const double unseen = *policy_->LastStepUnseen(0), read = policy_->LastStepBytes(0).read;
  ASSERT_GT(unseen, 0.35) << "keys without structure should leave much";
  const double read_at_first = policy_->LastStepBytes(1).read;
  for (int i = 0; i < 12; ++i) step();
  EXPECT_LT(*policy_->LastStepUnseen(0), unseen);
  EXPECT_GT(policy_->LastStepBytes(0).read, 1.5 * read);
  EXPECT_GT(limited->kv.retrieval_width.factor(), 1.5);
  EXPECT_EQ(free->kv.retrieval_width.factor(), 1);
  EXPECT_LT(policy_->LastStepBytes(1).read, 1.2 * read_at_first) << "only who has a limit";
  limited->kv.settings.max_unseen_mass = 0.95;
  for (int i = 0; i < 20; ++i) step();
  EXPECT_EQ(limited->kv.retrieval_width.factor(), 1);
  ReleaseAndFree(*limited);
  ReleaseAndFree(*free);
}

TEST_P(WavePolicyTest, WeighsASequencesFirstStepAndOneOfSixteen) {
  const auto first = Begin(1, 2300, 2500, 0.02), second = Begin(2, 2300, 2500, 0.02);
  Prefill(*first);
  Prefill(*second);
  int weighed = 0;
  for (int i = 0; i < 33; ++i) {
    Step({first.get()});
    weighed += policy_->LastStepUnseen(0).has_value() ? 1 : 0;
  }
  EXPECT_EQ(weighed, 3);  // 0, 16, 32
  Step({first.get(), second.get()});
  EXPECT_TRUE(policy_->LastStepUnseen(1).has_value());
  Step({first.get(), second.get()});
  EXPECT_FALSE(policy_->LastStepUnseen(1).has_value());
  second->kv.settings.max_unseen_mass = 0.5;
  for (int i = 0; i < 3; ++i) {
    Step({first.get(), second.get()});
    EXPECT_TRUE(policy_->LastStepUnseen(0).has_value());
  }
  ReleaseAndFree(*first);
  ReleaseAndFree(*second);
}

TEST_P(WavePolicyTest, AStepAllocatesNothing) {
  const auto first = Begin(1, 2300, 2500, 0.02), second = Begin(2, 500, 600, 0.02);
  Prefill(*first);
  Prefill(*second);
  const std::vector<SequenceKv*> batch = {&first->kv, &second->kv};
  const auto q = data_.Activations(RandomNormal(2 * kQuerySize, 1), 2, kQuerySize);
  const auto kv = data_.Activations(RandomNormal(2 * kKvSize, 2), 2, kKvSize);
  const auto out = data_.Poisoned(2, kQuerySize);
  const auto step = [&] {
    bool ok = BeginTendedStep(*cache_).ok() && policy_->BeginStep(batch).ok() &&
              policy_->UploadStep().ok();
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ok &= policy_->DecodeLayer(layer, kForm, q.view, kv.view, kv.view, out.view).ok();
    }
    ok &= policy_->DownloadStep().ok() && policy_->EndStep().ok();
    return ok && backend_->stream->Synchronize().ok();
  };
  EXPECT_TRUE(step());  // threads make their working memory
  EXPECT_TRUE(step());
  const int64_t before = NumAllocations();
  bool ok = true;
  for (int i = 0; i < 20; ++i) ok &= step();
  EXPECT_EQ(NumAllocations() - before, 0);
  EXPECT_TRUE(ok);
  ReleaseAndFree(*first);
  ReleaseAndFree(*second);
}

// A second segment is due before the first one, which moves the sequence's table, goes live.
class OverlappingBuildsTest : public WavePolicyTest {
 protected:
  OverlappingBuildsTest() : WavePolicyTest(2100) {}

  // Holds the background back until the result is notified, where the backend can.
  void HoldBackground(absl::Notification& go_on) {
    auto* const background = dynamic_cast<CpuStream*>(backend_->background.get());
    if (background == nullptr) return;
    ASSERT_TRUE(background->Launch([&go_on](ThreadPool&) { go_on.WaitForNotification(); }).ok());
  }
};

TEST_P(OverlappingBuildsTest, ASegmentIsBuiltFromTheBlocksThatItHadWhenItWasDue) {
  const auto sequence = Begin(1, 2090, 2300, 1.0);
  Prefill(*sequence);
  const auto step_until = [&](int64_t num_tokens) {
    while (sequence->kv.num_tokens < num_tokens) Step({sequence.get()});
  };
  step_until(2110);  // the first was due at 2100
  ASSERT_TRUE(backend_->background->Synchronize().ok());
  absl::Notification go_on;
  HoldBackground(go_on);
  step_until(2170);  // the second was due at 2116; the first is live since 2164
  EXPECT_EQ(sequence->kv.num_indexed_blocks, 1);
  go_on.Notify();
  step_until(2182);
  EXPECT_EQ(sequence->kv.num_indexed_blocks, 2);
  const auto outputs = Step({sequence.get()});
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_LT(RelativeError(outputs[layer], Exact(*sequence, layer)), Tolerance());
  }
  ReleaseAndFree(*sequence);
  ExpectNothingIsHeld();
}

INSTANTIATE_TEST_SUITE_P(Backends, OverlappingBuildsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

INSTANTIATE_TEST_SUITE_P(Backends, WavePolicyTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
