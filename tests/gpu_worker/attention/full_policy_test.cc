#include "gpu_worker/attention/full_policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "gpu_worker/kv/kv_memory.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using test_support::DeviceData;
using test_support::RandomNormal;

constexpr uint32_t kLayers = 2, kKvHeads = 2, kHeadDim = 64, kQueryHeads = 6;
const AttentionForm kForm{.scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim))};
constexpr int64_t kKvSize = kKvHeads * kHeadDim, kQuerySize = kQueryHeads * kHeadDim;

// Keys and values of one sequence and layer, [tokens][kv_heads * head_dim], bf16-rounded.
struct Tokens {
  std::vector<float> keys, values;
};

class FullPolicyTest : public testing::TestWithParam<test_support::BackendParam> {
 protected:
  void SetUp() override {
    backend_ = GetParam().create();
    data_ = std::make_unique<DeviceData>(*backend_);
    auto memory = KvMemory::Create(*backend_->device, {.geometry = geometry_,
                                                       .dense_blocks = 24,
                                                       .meta_blocks = 0,
                                                       .max_sequences = 3,
                                                       .max_model_len = 1024});
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    auto policy =
        FullPolicy::Create(*backend_->device, backend_->ops->attention(), *backend_->stream,
                           memory_->dense_pool(), memory_->tables(), {}, kQueryHeads, 3);
    ASSERT_TRUE(policy.ok()) << policy.status();
    policy_ = *std::move(policy);
  }

  static std::vector<float> Rounded(size_t size, uint64_t seed) {
    std::vector<float> values = RandomNormal(size, seed);
    for (float& value : values) value = test_support::FromBf16(test_support::ToBf16(value));
    return values;
  }
  Tokens MakeTokens(int64_t count, uint64_t seed) {
    return {Rounded(static_cast<size_t>(count * kKvSize), seed),
            Rounded(static_cast<size_t>(count * kKvSize), seed + 1000)};
  }

  // Lets the policy take over `layer` of a prompt, as a prefill does.
  void TakeLayer(SequenceKv& sequence, uint32_t layer, const Tokens& tokens) {
    const int64_t count = sequence.prompt_tokens;
    DeviceBuffer buffer = data_->Allocate(static_cast<size_t>(2 * count * kKvSize) * 2);
    const LayerKv kv{.keys = buffer.bytes().device_data(),
                     .values = buffer.bytes().device_data() + count * kKvSize * 2,
                     .num_kv_heads = kKvHeads,
                     .head_dim = kHeadDim,
                     .capacity = count,
                     .dtype = DType::kBf16};
    const auto keys = data_->Activations(tokens.keys, count, kKvSize);
    const auto values = data_->Activations(tokens.values, count, kKvSize);
    ASSERT_TRUE(
        backend_->ops->attention()
            .StoreLayerKv(*backend_->stream, {.keys = keys.view, .values = values.view, .out = kv})
            .ok());
    sequence.part = policy_->NextPart(sequence, sequence.prompt_tokens);
    ASSERT_TRUE(policy_->TakeLayer(sequence, layer, kv).ok());
    ASSERT_TRUE(*policy_->LayerTaken(sequence, layer));
    ASSERT_TRUE(backend_->stream->Synchronize().ok());
  }

  // Exact attention of one query row over all tokens, in double precision.
  static std::vector<double> Reference(const std::vector<float>& query, const Tokens& tokens) {
    const size_t count = tokens.keys.size() / kKvSize;
    std::vector<double> out(kQuerySize, 0.0);
    for (uint32_t head = 0; head < kQueryHeads; ++head) {
      const uint32_t kv_head = head / (kQueryHeads / kKvHeads);
      std::vector<double> weights(count);
      double total = 0;
      for (size_t t = 0; t < count; ++t) {
        double dot = 0;
        for (uint32_t i = 0; i < kHeadDim; ++i) {
          dot += double{query[head * kHeadDim + i]} *
                 tokens.keys[t * kKvSize + kv_head * kHeadDim + i];
        }
        total += weights[t] = std::exp(dot / std::sqrt(double{kHeadDim}));
      }
      for (size_t t = 0; t < count; ++t) {
        for (uint32_t i = 0; i < kHeadDim; ++i) {
          out[head * kHeadDim + i] +=
              weights[t] / total * tokens.values[t * kKvSize + kv_head * kHeadDim + i];
        }
      }
    }
    return out;
  }

  const KvGeometry geometry_{kLayers, kKvHeads, kHeadDim, kBf16Kv};
  std::unique_ptr<test_support::Backend> backend_;
  std::unique_ptr<DeviceData> data_;
  std::unique_ptr<KvMemory> memory_;
  std::unique_ptr<FullPolicy> policy_;
};

TEST_P(FullPolicyTest, NeedsABlockForTheSinkAndOneForEach64Tokens) {
  EXPECT_EQ(policy_->Need({}, 1, 4).dense_blocks, 1);
  EXPECT_EQ(policy_->Need({}, 1, 5).dense_blocks, 2);
  EXPECT_EQ(policy_->Need({}, 1, 68).dense_blocks, 2);
  EXPECT_EQ(policy_->Need({}, 1, 69).dense_blocks, 3);
  EXPECT_TRUE(policy_->Need({}, 1, 69).segment_tokens.empty());
}

// Prompts shorter than the sink, exactly a block, and several blocks long decode together until
// each has crossed a block boundary; every step equals exact attention over prompt and generated
// tokens.
TEST_P(FullPolicyTest, DecodeEqualsExactAttentionAtEveryStep) {
  const std::vector<int64_t> lengths = {2, 68, 200};
  constexpr int kSteps = 70;
  std::vector<SequenceKv> sequences(lengths.size());
  std::vector<SequenceKv*> batch;
  std::vector<std::vector<Tokens>> tokens(lengths.size());  // [sequence][layer]
  for (size_t s = 0; s < lengths.size(); ++s) {
    sequences[s].sequence_id = s + 1;
    sequences[s].prompt_tokens = lengths[s];
    ASSERT_TRUE(memory_->Reserve(policy_->Need({}, lengths[s], lengths[s] + kSteps), sequences[s]));
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      tokens[s].push_back(MakeTokens(lengths[s], 10 * s + layer));
      TakeLayer(sequences[s], layer, tokens[s][layer]);
    }
    ASSERT_TRUE(*policy_->FinishPrefill(sequences[s]));
    EXPECT_EQ(sequences[s].num_tokens, lengths[s]);
    batch.push_back(&sequences[s]);
  }
  const int64_t rows = static_cast<int64_t>(batch.size());
  for (int step = 0; step < kSteps; ++step) {
    ASSERT_TRUE(policy_->BeginStep(batch).ok());
    ASSERT_TRUE(policy_->UploadStep().ok());
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const uint64_t seed = 5000 + static_cast<uint64_t>(step) * 10 + layer;
      const auto query = Rounded(static_cast<size_t>(rows * kQuerySize), seed);
      const auto key = Rounded(static_cast<size_t>(rows * kKvSize), seed + 20000);
      const auto value = Rounded(static_cast<size_t>(rows * kKvSize), seed + 40000);
      const auto out = data_->Poisoned(rows, kQuerySize);
      const auto q = data_->Activations(query, rows, kQuerySize);
      const auto k = data_->Activations(key, rows, kKvSize);
      const auto v = data_->Activations(value, rows, kKvSize);
      ASSERT_TRUE(policy_->DecodeLayer(layer, kForm, q.view, k.view, v.view, out.view).ok());
      const std::vector<float> got = data_->Values(out);
      for (size_t s = 0; s < batch.size(); ++s) {
        Tokens& all = tokens[s][layer];
        const auto row = [s](const std::vector<float>& all_rows, int64_t width) {
          const auto first = all_rows.begin() + static_cast<int64_t>(s) * width;
          return std::vector<float>(first, first + width);
        };
        const auto new_key = row(key, kKvSize), new_value = row(value, kKvSize);
        all.keys.insert(all.keys.end(), new_key.begin(), new_key.end());
        all.values.insert(all.values.end(), new_value.begin(), new_value.end());
        // Inputs are bf16 already, so only f32 sums and the output's dtype round.
        EXPECT_LT(test_support::RelativeError(row(got, kQuerySize),
                                              Reference(row(query, kQuerySize), all)),
                  GetParam().matmul_tolerance)
            << "step " << step << " layer " << layer << " sequence " << s;
      }
    }
    ASSERT_TRUE(policy_->DownloadStep().ok());
    ASSERT_TRUE(policy_->EndStep().ok());
  }
  for (size_t s = 0; s < batch.size(); ++s) {
    EXPECT_EQ(sequences[s].num_tokens, lengths[s] + kSteps);
    EXPECT_EQ(policy_->LastStepBytes(s).read, policy_->LastStepBytes(s).full);
    EXPECT_TRUE(*policy_->Release(sequences[s]));
    memory_->Free(sequences[s]);
  }
  EXPECT_EQ(memory_->dense_blocks().num_used(), 0);
}

TEST_P(FullPolicyTest, RefusesToOutgrowItsBlocks) {
  SequenceKv sequence;
  sequence.prompt_tokens = 68;
  ASSERT_TRUE(memory_->Reserve(policy_->Need({}, 68, 68), sequence));
  sequence.num_tokens = 68;
  SequenceKv* batch[] = {&sequence};
  EXPECT_EQ(policy_->BeginStep(batch).code(), absl::StatusCode::kInternal);
}

INSTANTIATE_TEST_SUITE_P(Backends, FullPolicyTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
