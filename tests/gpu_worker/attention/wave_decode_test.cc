#include "gpu_worker/attention/wave_decode.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gpu_worker/measuring/retrieval_trace/retrieval_recorder.h"
#include "tests/support/backends.h"
#include "tests/support/coded_attention.h"
#include "tests/support/data_plane_memory.h"
#include "tests/support/decoded_trace.h"
#include "tests/support/settled_stats.h"
#include "tests/support/tend_cache.h"
#include "tests/support/wave_sequence.h"

namespace retroinfer {
namespace {

using namespace test_support;

class WaveDecodeTest : public testing::TestWithParam<BackendParam> {
 protected:
  static constexpr uint32_t kKvHeads = 2, kGroup = 4, kHeadDim = 64;
  const AttentionForm form_{.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim))};
  static constexpr int32_t kQueryHeads = kKvHeads * kGroup;
  static constexpr uint32_t kArenaPages = 60'000;

  // A block cache of `num_slots`, and memory for a few sequences.
  void SetUpMemory(const KvFormat& format, uint32_t num_slots, uint32_t num_transient) {
    geometry_ = {2, kKvHeads, kHeadDim, format};
    // What was there goes first: memory is mapped for the device once.
    decode_.reset();
    memory_.reset();
    builder_.reset();
    cache_.reset();
    arena_.resize(size_t{kArenaPages} * kPageBytes);
    plane_ = std::make_unique<DataPlaneMemory>(num_slots, 1 << 17, 64, kArenaPages);
    auto cache = BlockCache::Create(
        *backend_->device, backend_->ops->block_cache(), *backend_->stream,
        {.num_slots = num_slots, .num_transient = num_transient}, arena_, plane_->bytes());
    RI_CHECK(cache.ok());
    cache_ = *std::move(cache);
    dense_bytes_ = data_.Allocate(600 * DensePoolView::BlockBytes(geometry_));
    meta_bytes_ = data_.Allocate(64 * MetaPoolView::BlockBytes(geometry_));
    const DensePoolView dense{dense_bytes_.bytes(), geometry_};
    const MetaPoolView meta{meta_bytes_.bytes(), geometry_};
    auto builder = SegmentBuilder::Create(*backend_->device, *backend_->ops, *backend_->background,
                                          meta, {.host = arena_, .device = cache_->device_arena()},
                                          {}, {.max_open_segments = 1});
    RI_CHECK(builder.ok());
    builder_ = *std::move(builder);
    memory_ = std::make_unique<WaveMemory>(WaveMemory{data_, dense, meta, *builder_});
    auto decode = WaveDecode::Create(
        *backend_->device, *backend_->ops, *backend_->stream, *cache_, dense, meta,
        {.num_query_heads = kQueryHeads, .max_batch = 4, .max_tokens = 20'000});
    RI_CHECK(decode.ok());
    decode_ = *std::move(decode);
  }

  WaveSequence& AddSequence(int64_t num_tokens, uint64_t seed, int64_t dense_below = 8192) {
    std::vector<LayerKvImage> layers;
    for (uint32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      const StructuredKv kv(kKvHeads, num_tokens, kHeadDim, seed + 100 * layer);
      layers.emplace_back(data_, kv.keys, kv.values, kKvHeads, kHeadDim, geometry_.format);
    }
    sequences_.push_back(std::make_unique<WaveSequence>(*backend_, *memory_, std::move(layers),
                                                        num_tokens, dense_below));
    seeds_.push_back(seed);
    return *sequences_.back();
  }

  // Queries of sequence `i` for `layer`: each head likes a topic of its own.
  std::vector<float> Queries(size_t i, uint32_t layer, float strength) const {
    const StructuredKv kv(1, 1, kHeadDim, seeds_[i] + 100 * layer);
    std::vector<float> queries;
    for (size_t head = 0; head < kQueryHeads; ++head) {
      const auto query = kv.Query(head * 5, seeds_[i] + head, strength, kHeadDim);
      queries.insert(queries.end(), query.begin(), query.end());
    }
    return queries;
  }

  // One step of the given sequences, with `task_`; outputs of all
  // layers, [layer][row][query_heads * d].
  std::vector<std::vector<float>> Step(const std::vector<size_t>& batch,
                                       const SelectionRatios& ratios, float strength = 1.0f) {
    std::vector<WaveDecode::Sequence> rows;
    std::vector<DenseZone> zones;
    for (const size_t i : batch) {
      rows.push_back({sequences_[i]->index(), ratios});
      zones.push_back(sequences_[i]->zone());
    }
    const DeviceBuffer device_zones = data_.Upload(zones);
    RI_CHECK(BeginTendedStep(*cache_).ok());
    RI_CHECK(decode_->BeginStep(rows, device_zones.as<const DenseZone>().first(batch.size()), task_)
                 .ok());
    RI_CHECK(decode_->UploadStep().ok());
    std::vector<std::vector<float>> outputs;
    for (uint32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      std::vector<float> host;
      for (const size_t i : batch) {
        const auto queries = Queries(i, layer, strength);
        host.insert(host.end(), queries.begin(), queries.end());
      }
      const int64_t cols = int64_t{kQueryHeads} * kHeadDim;
      const auto queries = data_.Activations(host, static_cast<int64_t>(batch.size()), cols);
      const auto out = data_.Poisoned(static_cast<int64_t>(batch.size()), cols);
      const absl::Status status = decode_->Layer(layer, form_, queries.view, out.view);
      RI_CHECK(status.ok());
      outputs.push_back(data_.Values(out));
    }
    RI_CHECK(decode_->DownloadStep().ok());
    RI_CHECK(backend_->stream->Synchronize().ok());
    return outputs;
  }

  // What a step of sequence 0, the first that was added, gives by the rule of codes in doubles:
  // [query_heads * d].
  std::vector<double> CodedReference(uint32_t layer, const SelectionRatios& ratios,
                                     float strength) {
    const WaveSequence& sequence = *sequences_[0];
    auto pool_bytes = data_.Download<std::byte>(meta_bytes_);
    const MetaPoolView pool{{pool_bytes.data(), pool_bytes.size()}, geometry_};
    const SelectionBudget budget =
        CodedBudgetOf(ratios, sequence.index().num_blocks * int32_t{kClustersPerMetaBlock},
                      geometry_.tokens_per_page());
    const auto queries = data_.Rounded(Queries(0, layer, strength));
    const LayerKvImage& kv = sequence.layer(layer);
    std::vector<double> all;
    for (uint32_t head = 0; head < kKvHeads; ++head) {
      std::vector<std::vector<double>> of_group, keys, values;
      for (uint32_t g = 0; g < kGroup; ++g) {
        const float* const query = queries.data() + (head * kGroup + g) * kHeadDim;
        of_group.emplace_back(query, query + kHeadDim);
      }
      for (int64_t t = 0; t < sequence.num_tokens(); ++t) {
        if (t >= kSinkTokens && t < sequence.num_tokens() - sequence.zone().num_window_tokens) {
          continue;
        }
        keys.emplace_back(kv.Key(head, t), kv.Key(head, t) + kHeadDim);
        values.emplace_back(kv.Value(head, t), kv.Value(head, t) + kHeadDim);
      }
      CodedAttention attention(pool, layer, head, sequence.index().num_blocks, arena_);
      for (const auto& output : attention.Attend(of_group, budget, keys, values)) {
        all.insert(all.end(), output.begin(), output.end());
      }
    }
    return all;
  }

  BlockCacheStats Stats() { return SettledStats(*cache_, *backend_->stream); }

  // Error of a step of sequence `i` alone against exact attention, both layers.
  double Error(size_t i, const SelectionRatios& ratios, float strength = 1.0f) {
    const auto outputs = Step({i}, ratios, strength);
    double error = 0;
    for (uint32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      const auto queries = Queries(i, layer, strength);
      std::vector<double> want;
      for (uint32_t head = 0; head < kQueryHeads; ++head) {
        const auto exact =
            sequences_[i]->Attention(layer, head / kGroup, queries.data() + head * kHeadDim);
        want.insert(want.end(), exact.begin(), exact.end());
      }
      error = std::max(error, RelativeError(outputs[layer], want));
    }
    return error;
  }

  // Of f32 sums; where activations are bf16, of rounding queries and outputs.
  double Tolerance() const {
    return backend_->ops->model().activation_dtype() == DType::kBf16 ? 1.0 / 128 : 1e-5;
  }

  static constexpr SelectionRatios kAll{.retrieval = 1.0, .estimation = 0.0};

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  KvGeometry geometry_;
  std::vector<std::byte> arena_;
  std::unique_ptr<DataPlaneMemory> plane_;
  std::unique_ptr<BlockCache> cache_;
  DeviceBuffer dense_bytes_;
  DeviceBuffer meta_bytes_;
  std::unique_ptr<SegmentBuilder> builder_;
  std::unique_ptr<WaveMemory> memory_;
  std::unique_ptr<WaveDecode> decode_;
  WaveDecode::StepTask task_{.weighs_unseen = true};
  std::vector<std::unique_ptr<WaveSequence>> sequences_;
  std::vector<uint64_t> seeds_;
};

TEST_P(WaveDecodeTest, RetrievingEverythingIsFullAttention) {
  for (const KvFormat& format : test_support::KvFormatsOf(*backend_)) {
    SCOPED_TRACE(format.name);
    sequences_.clear();
    seeds_.clear();
    SetUpMemory(format, 30'000, 64);
    AddSequence(4 + 8192 + 2 * 1024 + 100, 1);
    // KV is the same, rounded or not; what is left is f32 arithmetic.
    EXPECT_LT(Error(0, kAll), Tolerance());
    EXPECT_LT(Error(0, kAll, 3.0f), Tolerance()) << "a sharp distribution";
    const BlockCacheStats stats = Stats();
    EXPECT_GT(stats.counters.hits, 0u);
    EXPECT_GT(stats.counters.admissions, 0u);
  }
}

TEST_P(WaveDecodeTest, WhereAPageLiesChangesNothing) {
  // 100 slots and 50 transient ones: most pages are read in the arena.
  SetUpMemory(kBf16Kv, 100, 50);
  AddSequence(4 + 8192 + 100, 1);
  const auto cold = Step({0}, {});
  const auto warm = Step({0}, {});
  EXPECT_EQ(cold, warm);
  EXPECT_LT(Error(0, kAll), Tolerance());
  const BlockCacheStats stats = Stats();
  EXPECT_EQ(stats.num_used_slots, 100u);
  EXPECT_GT(stats.counters.transients, 1000u);
}

TEST_P(WaveDecodeTest, WhatIsRecordedIsWhatTheCacheCounts) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("retroinfer_wave_decode_" + std::to_string(::getpid()));
  SetUpMemory(kBf16Kv, 8'000, 64);
  AddSequence(4 + 8192 + 100, 1);
  {
    auto file = TraceFile::Open(path, TraceEncoder::kMagic, 1 << 20);
    ASSERT_TRUE(file.ok()) << file.status();
    auto recorder = RetrievalRecorder::Create(
        *backend_->device, {.geometry = geometry_, .max_batch = 4, .max_clusters = 600},
        *std::move(file));
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    decode_->Observe(recorder->get());
    SequenceKv sequence{.sequence_id = 1};
    sequence.num_indexed_blocks = sequences_[0]->index().num_blocks;
    SequenceKv* const batch[] = {&sequence};
    for (int step = 0; step < 2; ++step) {
      (*recorder)->BeginStep(batch, 64);
      Step({0}, {});
    }
    (*recorder)->Release(sequence);
    decode_->Observe(nullptr);
  }
  std::stringstream bytes;
  bytes << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  const DecodedTrace trace(bytes.str());
  ASSERT_EQ(trace.steps.size(), 2u);
  uint64_t pages[2] = {0, 0}, missed[2] = {0, 0};
  for (size_t step = 0; step < 2; ++step) {
    for (const HeadRetrieval& head : trace.steps[step].heads) {
      EXPECT_EQ(head.clusters.size(), 64u);
      for (const RetrievedCluster& cluster : head.clusters) {
        pages[step] += cluster.num_pages;
        missed[step] += cluster.num_missed;
      }
    }
  }
  const BlockCacheCounters counted = Stats().counters;
  EXPECT_EQ(pages[0] + pages[1], counted.hits + counted.misses);
  EXPECT_EQ(missed[0], counted.misses);
  EXPECT_EQ(missed[0], pages[0]) << "nothing was there before";
  EXPECT_EQ(missed[1], 0u);
}

TEST_P(WaveDecodeTest, EstimationLowersTheError) {
  SetUpMemory(kBf16Kv, 8'000, 64);
  AddSequence(4 + 8192 + 1024 + 70, 3);
  // The defaults, but for the floors, which would hide the ratios at this length.
  const SelectionRatios with{.min_retrieved = 0};
  const SelectionRatios without{.estimation = 0, .min_retrieved = 0};
  for (const float strength : {0.3f, 0.6f, 1.0f}) {
    SCOPED_TRACE(strength);
    const double error_with = Error(0, with, strength);
    const double error_without = Error(0, without, strength);
    EXPECT_LT(error_with, 0.8 * error_without);
    EXPECT_GT(error_without, 1e-3) << "nothing left to estimate";
  }
}

TEST_P(WaveDecodeTest, ARowDoesNotDependOnTheBatch) {
  SetUpMemory(kBf16Kv, 8'000, 2'000);
  AddSequence(4 + 8192 + 1024 + 70, 3);
  AddSequence(500, 4);  // no index
  AddSequence(3000, 5, 1000);
  const auto together = Step({0, 1, 2}, {});
  for (size_t i = 0; i < 3; ++i) {
    const auto alone = Step({i}, {});
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const size_t size = size_t{kQueryHeads} * kHeadDim;
      EXPECT_EQ(std::memcmp(together[layer].data() + i * size, alone[layer].data(), size * 4), 0)
          << "sequence " << i << " layer " << layer;
    }
  }
}

TEST_P(WaveDecodeTest, WithoutAnIndexItIsExact) {
  SetUpMemory(kF32Kv, 100, 100);
  AddSequence(500, 4);
  AddSequence(3, 6);
  EXPECT_LT(Error(0, {}), Tolerance());
  EXPECT_LT(Error(1, {}), Tolerance());
  EXPECT_EQ(decode_->LastStepIndexBytes(0), 0.0);
}

TEST_P(WaveDecodeTest, CountsTheBytesOfAStep) {
  SetUpMemory(kBf16Kv, 8'000, 64);
  AddSequence(4 + 8192 + 70, 3);  // 512 clusters: 64 retrieved, 119 estimated
  Step({0}, {});
  const BlockCacheCounters counters = Stats().counters;
  const uint64_t num_pages = counters.hits + counters.misses;
  EXPECT_GE(num_pages, 64u * 4);  // a page for each cluster, layer and head at least
  EXPECT_EQ(decode_->LastStepIndexBytes(0),
            (512 + 119) * 128.0 * 4 + static_cast<double>(num_pages * kPageBytes));
}

TEST_P(WaveDecodeTest, TellsTheMassThatItDidNotAttendToExactly) {
  SetUpMemory(kBf16Kv, 30'000, 64);
  AddSequence(4 + 8192 + 1024 + 70, 3);
  AddSequence(500, 4);  // no index
  AddSequence(4 + 8192 + 70, 5);
  Step({1}, {});
  EXPECT_EQ(*decode_->LastStepUnseen(0), 0);
  Step({0, 1, 2}, kAll);
  for (size_t row = 0; row < 3; ++row) EXPECT_LT(*decode_->LastStepUnseen(row), 1e-5) << row;
  // The less is retrieved, the more is left out; nothing retrieved leaves the steady zone.
  Step({0, 1, 2}, {.retrieval = 0.2, .min_retrieved = 0});
  const double little[] = {*decode_->LastStepUnseen(0), *decode_->LastStepUnseen(2)};
  Step({0, 1, 2}, {.min_retrieved = 0});
  const double more[] = {*decode_->LastStepUnseen(0), *decode_->LastStepUnseen(2)};
  Step({0, 1, 2}, {.retrieval = 0, .estimation = 0});
  const double most[] = {*decode_->LastStepUnseen(0), *decode_->LastStepUnseen(2)};
  EXPECT_EQ(*decode_->LastStepUnseen(1), 0);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_GT(little[i], 0);
    EXPECT_GT(more[i], little[i]);
    EXPECT_GT(most[i], more[i]);
    EXPECT_LT(most[i], 1);
  }
  Step({2}, {.min_retrieved = 0});
  EXPECT_EQ(*decode_->LastStepUnseen(0), more[1]) << "whatever else is in the batch";
}

TEST_P(WaveDecodeTest, AStepThatFetchesFirstGivesTheSame) {
  for (const uint32_t num_slots : {30'000u, 100u}) {  // room for all pages, and for few
    SCOPED_TRACE(num_slots);
    sequences_.clear();
    seeds_.clear();
    SetUpMemory(kBf16Kv, num_slots, 50);
    AddSequence(4 + 8192 + 1024 + 70, 3);
    task_.fetches_first = true;
    const auto cold = Step({0, 0, 0}, {});
    const uint64_t shape = decode_->StepShape();
    const auto warm = Step({0, 0, 0}, {});
    task_.fetches_first = false;
    EXPECT_EQ(Step({0, 0, 0}, {}), cold);
    EXPECT_NE(decode_->StepShape(), shape) << "it is other work";
    EXPECT_EQ(warm, cold);
    const BlockCacheStats stats = Stats();
    EXPECT_EQ(stats.counters.misses, stats.counters.admissions + stats.counters.transients);
    EXPECT_EQ(stats.counters.transients == 0, num_slots > 100) << "pages are kept if there is room";
  }
}

TEST_P(WaveDecodeTest, AStepThatDoesNotWeighGivesTheSame) {
  SetUpMemory(kBf16Kv, 30'000, 64);
  AddSequence(4 + 8192 + 1024 + 70, 3);
  Step({0}, {});  // the pages are there
  const auto weighed = Step({0}, {});
  const uint64_t shape = decode_->StepShape();
  task_.weighs_unseen = false;
  EXPECT_EQ(Step({0}, {}), weighed);
  EXPECT_FALSE(decode_->LastStepUnseen(0).has_value());
  EXPECT_NE(decode_->StepShape(), shape) << "it is other work";
}

// A prediction from below: clusters count with the exponential of their mean.
TEST_P(WaveDecodeTest, WhatItTellsIsBelowTheTrueShareAndNotFarFromIt) {
  SetUpMemory(kBf16Kv, 30'000, 64);
  AddSequence(4 + 8192 + 1024 + 70, 3);
  const SelectionRatios nothing{.retrieval = 0, .estimation = 0};
  Step({0}, nothing, 0.5f);
  const double told = *decode_->LastStepUnseen(0);
  double truth = 0;
  for (uint32_t layer = 0; layer < geometry_.num_layers; ++layer) {
    const auto queries = Queries(0, layer, 0.5f);
    for (uint32_t head = 0; head < kQueryHeads; ++head) {
      truth +=
          sequences_[0]->ShareOfClusters(layer, head / kGroup, queries.data() + head * kHeadDim);
    }
  }
  truth /= geometry_.num_layers * kQueryHeads;
  EXPECT_LT(told, truth + 0.01);
  EXPECT_GT(told, 0.5 * truth);
}

class CodedDecodeTest : public WaveDecodeTest {
 protected:
  // Few, so that much is left to estimates.
  static constexpr SelectionRatios kFew{.retrieval = 0.02,
                                        .estimation = 0.3,
                                        .min_retrieved = 0,
                                        .candidates = 0.1,
                                        .min_candidates = 0};
};

TEST_P(CodedDecodeTest, AgreesWithItsRule) {
  for (const KvFormat& format : {kBf16CodedKv, kInt8CodedKv}) {
    SCOPED_TRACE(format.name);
    sequences_.clear();
    seeds_.clear();
    SetUpMemory(format, 8'000, 64);
    AddSequence(4 + 8192 + 2 * 1024 + 70, 3);
    for (const float strength : {0.3f, 1.0f}) {
      for (int round = 0; round < 2; ++round) {  // misses, then hits
        const auto outputs = Step({0}, kFew, strength);
        for (uint32_t layer = 0; layer < geometry_.num_layers; ++layer) {
          EXPECT_LT(RelativeError(outputs[layer], CodedReference(layer, kFew, strength)),
                    std::max(2 * Tolerance(), 1e-4))
              << strength << ", layer " << layer;
        }
      }
    }
  }
}

// At the same number of tokens; what it reads besides, codes, is less than these are.
TEST_P(CodedDecodeTest, IsNearerToFullAttentionThanWholeClustersAre) {
  for (const float strength : {0.6f, 1.0f}) {
    double errors[2];
    for (const bool is_coded : {false, true}) {
      sequences_.clear();
      seeds_.clear();
      SetUpMemory(is_coded ? kBf16CodedKv : kBf16Int8Kv, 8'000, 64);
      AddSequence(4 + 8192 + 1024 + 70, 3);
      errors[is_coded] = Error(0, kFew, strength);
    }
    EXPECT_LT(errors[1], 0.95 * errors[0]) << strength;
  }
}

TEST_P(CodedDecodeTest, ARowDoesNotDependOnTheBatch) {
  SetUpMemory(kInt8CodedKv, 8'000, 2'000);
  AddSequence(4 + 8192 + 1024 + 70, 3);
  AddSequence(500, 4);  // no index
  AddSequence(3000, 5, 1000);
  const auto together = Step({0, 1, 2}, kFew);
  for (size_t i = 0; i < 3; ++i) {
    const auto alone = Step({i}, kFew);
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const size_t size = size_t{kQueryHeads} * kHeadDim;
      EXPECT_EQ(std::memcmp(together[layer].data() + i * size, alone[layer].data(), size * 4), 0)
          << "sequence " << i << " layer " << layer;
    }
  }
}

TEST_P(CodedDecodeTest, CountsTheBytesOfAStep) {
  SetUpMemory(kBf16CodedKv, 8'000, 64);
  AddSequence(4 + 8192 + 70, 3);  // 512 clusters: 52 candidates, 154 estimated
  Step({0}, kFew);
  const BlockCacheCounters counters = Stats().counters;
  const uint64_t num_pages = counters.hits + counters.misses;
  EXPECT_EQ(num_pages, 21u * 4) << "2 % of 8192 tokens, 8 a page, of 4 layers and heads";
  const double without_codes =
      (512 + 52 + 154) * 64.0 * 4 + static_cast<double>(num_pages * kPageBytes);
  const double codes = (decode_->LastStepIndexBytes(0) - without_codes) / (64 / 4 + 4);
  EXPECT_EQ(codes, std::floor(codes));
  EXPECT_GT(codes, 52 * 4);
  EXPECT_LT(codes, 0.3 * 8192 * 4);
}

TEST_P(CodedDecodeTest, TellsTheMassThatItDidNotAttendToExactly) {
  SetUpMemory(kBf16CodedKv, 30'000, 64);
  AddSequence(4 + 8192 + 1024 + 70, 3);
  Step({0}, kAll);
  EXPECT_LT(*decode_->LastStepUnseen(0), 1e-5);
  double last = 0;
  for (const double retrieval : {0.2, 0.02, 0.0}) {
    SelectionRatios ratios = kFew;
    ratios.retrieval = retrieval;
    Step({0}, ratios);
    EXPECT_GT(*decode_->LastStepUnseen(0), last);
    last = *decode_->LastStepUnseen(0);
  }
  EXPECT_LT(last, 1);
}

TEST_P(CodedDecodeTest, MorePagesAreAnotherShape) {
  SetUpMemory(kBf16CodedKv, 8'000, 64);
  AddSequence(4 + 8192 + 70, 3);
  Step({0}, kFew);
  const uint64_t few = decode_->StepShape();
  SelectionRatios more = kFew;
  more.min_retrieved = 256;  // 512 pages; the candidates are as many
  Step({0}, more);
  EXPECT_NE(decode_->StepShape(), few);
}

INSTANTIATE_TEST_SUITE_P(Backends, CodedDecodeTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);
INSTANTIATE_TEST_SUITE_P(Backends, WaveDecodeTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
