#include "gpu_worker/model/transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "gpu_worker/model/model_shapes.h"
#include "gpu_worker/model/rope_scaling.h"
#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "gpu_worker/ops/backend/cuda/cuda_needs.h"
#include "tests/gpu_worker/model/dense_sequences.h"
#include "tests/gpu_worker/model/golden_model.h"
#include "tests/gpu_worker/model/renamed_family.h"
#include "tests/support/allocation_count.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::Backend;
using test_support::BackendParam;
using test_support::DenseSequences;
using test_support::DeviceData;
using test_support::GoldenModel;
using test_support::NormError;
using ::testing::HasSubstr;

// A golden model on a backend, driven as the engine drives it.
class Runner {
 public:
  Runner(const BackendParam& param, const std::string& model_name)
      : Runner(param, GoldenModel(model_name)) {}
  Runner(const BackendParam& param, GoldenModel model_and_logits,
         KeptWeights keep = KeptWeights::kAsStored)
      : golden(std::move(model_and_logits)),
        is_f32(param.matmul_tolerance < 1e-4),
        backend(param.create()),
        data(*backend) {
    auto loaded =
        Transformer::Load(*backend->device, *backend->ops, golden.config, golden.checkpoint,
                          {.max_prefill_rows = 128, .max_decode_rows = 4, .weights = keep});
    RI_CHECK(loaded.ok());
    model = *std::move(loaded);
  }

  KvFormat kv_format() const { return is_f32 ? kF32Kv : kBf16Kv; }
  // What the task sets: f32 follows Hugging Face to rounding, bf16 to its 8 bits of mantissa.
  double tolerance() const { return is_f32 ? 1e-4 : 2e-2; }

  // The KV of one layer, poisoned, with room for `capacity` tokens.
  LayerKv NewLayerKv(int64_t capacity) {
    const KvGeometry geometry = golden.config.geometry(kv_format());
    const size_t bytes =
        static_cast<size_t>(capacity) * geometry.num_kv_heads * geometry.prompt_vector_bytes();
    kv_buffer = data.Upload(std::vector<float>(2 * bytes / sizeof(float), test_support::kNan));
    return {.keys = kv_buffer.bytes().device_data(),
            .values = kv_buffer.bytes().device_data() + bytes,
            .num_kv_heads = geometry.num_kv_heads,
            .head_dim = geometry.head_dim,
            .capacity = capacity,
            .dtype = geometry.format.prompt,
            .rounds_to_eight_bits = geometry.format.token == kEightBitTokens};
  }

  // Prefills `prompt` layer by layer in chunks of these sizes (the last one repeats), hands each
  // layer to `sequences` if there is one, and returns the hidden states [prompt, hidden].
  DeviceData::Matrix Prefill(const std::vector<int32_t>& prompt, const std::vector<int64_t>& chunks,
                             DenseSequences* sequences = nullptr, int sequence = 0) {
    const auto total = static_cast<int64_t>(prompt.size());
    DeviceData::Matrix hidden = data.Poisoned(total, golden.config.hidden_size);
    const DeviceBuffer tokens = data.Upload(prompt);
    Check(model->Embed(*backend->stream, tokens.as<const int32_t>(), hidden.view));
    for (uint32_t layer = 0; layer < golden.config.num_layers; ++layer) {
      const LayerKv kv = NewLayerKv(total + 5);
      size_t chunk = 0;
      for (int64_t first = 0; first < total;) {
        const int64_t rows = std::min(chunks[std::min(chunk++, chunks.size() - 1)], total - first);
        const bool is_last_layer = layer + 1 == golden.config.num_layers;
        const int64_t outputs = is_last_layer ? std::min(last_layer_outputs, rows) : rows;
        Check(model->PrefillLayer(*backend->stream, layer, hidden.view.Rows(first, rows), first, kv,
                                  outputs));
        first += rows;
      }
      if (sequences != nullptr) Check(sequences->Fill(sequence, layer, kv, total));
    }
    return hidden;
  }

  // Logits of one row of the hidden states.
  std::vector<float> LogitsOf(const MatrixView& hidden, int64_t row) {
    DeviceData::Matrix logits = data.UploadMatrix(
        std::vector<float>(static_cast<size_t>(golden.config.vocab_size), test_support::kNan), 1,
        golden.config.vocab_size, DType::kF32);
    Check(model->Logits(*backend->stream, hidden.Rows(row, 1), logits.view));
    return data.Values(logits);
  }

  // Rows of a chunk that Prefill has the last layer compute.
  int64_t last_layer_outputs = std::numeric_limits<int64_t>::max();

  // Allocations that the model's part of the last decode step made.
  int64_t decode_allocations = -1;

  // One decode step of some sequences; logits [sequences, vocab].
  std::vector<float> Decode(DenseSequences& dense, const std::vector<int>& sequences,
                            const std::vector<int32_t>& tokens) {
    std::vector<int32_t> positions;
    for (const int sequence : sequences) {
      positions.push_back(static_cast<int32_t>(dense.length(sequence)));
    }
    dense.BeginStep(sequences);
    const DeviceBuffer token_ids = data.Upload(tokens);
    const DeviceBuffer device_positions = data.Upload(positions);
    const auto rows = static_cast<int64_t>(tokens.size());
    DeviceData::Matrix logits =
        data.UploadMatrix(std::vector<float>(static_cast<size_t>(rows * golden.config.vocab_size),
                                             test_support::kNan),
                          rows, golden.config.vocab_size, DType::kF32);
    const int64_t allocations_before = test_support::NumAllocations();
    const absl::Status status = model->Decode(
        *backend->stream, token_ids.as<const int32_t>(), device_positions.as<const int32_t>(),
        [&](uint32_t layer, const MatrixView& queries, const MatrixView& keys,
            const MatrixView& values, const MatrixView& out) {
          return dense.Attend(layer, model->AttentionOf(layer), queries, keys, values, out);
        },
        logits.view);
    decode_allocations = test_support::NumAllocations() - allocations_before;
    Check(status);
    return data.Values(logits);
  }

  static void Check(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

  const GoldenModel golden;
  const bool is_f32;
  std::unique_ptr<Backend> backend;
  DeviceData data;
  DeviceBuffer kv_buffer;
  std::unique_ptr<Transformer> model;
};

class TransformerGoldenTest
    : public ::testing::TestWithParam<std::tuple<BackendParam, std::string>> {
 protected:
  Runner run_{std::get<0>(GetParam()), std::get<1>(GetParam())};
};

TEST_P(TransformerGoldenTest, PrefillEqualsHuggingFaceInAnyChunks) {
  const GoldenModel& golden = run_.golden;
  const std::vector<std::vector<int64_t>> chunkings = {{128}, {64}, {1, 33, 3, 50}, {17}};
  for (const auto& chunks : chunkings) {
    const DeviceData::Matrix hidden = run_.Prefill(golden.prompt, chunks);
    double worst = 0;
    for (size_t row = 0; row < golden.prefill_positions.size(); ++row) {
      const auto logits = run_.LogitsOf(hidden.view, golden.prefill_positions[row]);
      worst = std::max(worst, NormError(logits, golden.PrefillLogits(row)));
    }
    EXPECT_LE(worst, run_.tolerance()) << "first chunk " << chunks.front();
    RecordProperty("worst", std::to_string(worst));
  }
}

// So greedy tokens do not depend on what else the engine does between slices, nor on where a cached
// prefix ends.
TEST_P(TransformerGoldenTest, ChunksDoNotChangeABitOfPrefill) {
  const auto whole = run_.data.Values(run_.Prefill(run_.golden.prompt, {128}));
  for (const std::vector<int64_t>& chunks :
       std::vector<std::vector<int64_t>>{{64}, {17}, {1}, {1, 33, 3, 50}}) {
    EXPECT_TRUE(run_.data.Values(run_.Prefill(run_.golden.prompt, chunks)) == whole)
        << "first chunk " << chunks.front();
  }
}

// Keys and values do not miss the rows that the last layer leaves out, nor do its last rows.
TEST_P(TransformerGoldenTest, TheLastLayerMayComputeLastRowsOnly) {
  const auto total = static_cast<int64_t>(run_.golden.prompt.size());
  const std::vector<int64_t> chunks = {33, 64};
  const auto whole = run_.Prefill(run_.golden.prompt, chunks);
  const auto whole_kv = run_.data.Download<uint16_t>(run_.kv_buffer);
  const auto want = run_.LogitsOf(whole.view, total - 1);
  for (const int64_t outputs : {5, 1, 0}) {
    run_.last_layer_outputs = outputs;
    const auto some = run_.Prefill(run_.golden.prompt, chunks);
    EXPECT_TRUE(run_.data.Download<uint16_t>(run_.kv_buffer) == whole_kv) << outputs;
    const double error = NormError(run_.LogitsOf(some.view, total - 1), want);
    if (outputs > 0) {
      EXPECT_LE(error, run_.tolerance()) << outputs;
    } else {
      EXPECT_GT(error, 0.1) << outputs;
    }
    // A row that is left out is as the layer before left it.
    EXPECT_GT(NormError(run_.LogitsOf(some.view, 0), run_.LogitsOf(whole.view, 0)), 0.1) << outputs;
  }
}

TEST_P(TransformerGoldenTest, DecodeAfterPrefillEqualsHuggingFace) {
  const GoldenModel& golden = run_.golden;
  ASSERT_EQ(golden.forced.size(), 64u);
  DenseSequences dense(*run_.backend, golden.config, run_.kv_format(), 1, 200);
  run_.Prefill(golden.prompt, {128}, &dense);
  double worst = 0;
  for (size_t step = 0; step < golden.forced.size(); ++step) {
    const auto logits = run_.Decode(dense, {0}, {golden.forced[step]});
    const double error = NormError(logits, golden.DecodeLogits(step));
    EXPECT_LE(error, run_.tolerance()) << "step " << step;
    worst = std::max(worst, error);
  }
  RecordProperty("worst", std::to_string(worst));
}

TEST_P(TransformerGoldenTest, DecodeFromTheFirstTokenEqualsHuggingFace) {
  const GoldenModel& golden = run_.golden;
  DenseSequences dense(*run_.backend, golden.config, run_.kv_format(), 1, 200);
  for (size_t token = 0; token < golden.prompt.size(); ++token) {
    const auto logits = run_.Decode(dense, {0}, {golden.prompt[token]});
    for (size_t row = 0; row < golden.prefill_positions.size(); ++row) {
      if (golden.prefill_positions[row] != static_cast<int64_t>(token)) continue;
      EXPECT_LE(NormError(logits, golden.PrefillLogits(row)), run_.tolerance()) << token;
    }
  }
}

// Each matrix product lets the library below it allocate its own book-keeping (a handful of calls
// for each thread's share); nothing else in a step may allocate, and nothing may grow.
TEST_P(TransformerGoldenTest, AWarmDecodeStepAllocatesInMatrixProductsOnly) {
  const GoldenModel& golden = run_.golden;
  constexpr int64_t kAllocationsPerProduct = 16;
  const int64_t of_layer = 6 + 3 * golden.config.experts.count;  // each expert that is taken
  const int64_t num_products = of_layer * golden.config.num_layers + 1;
  DenseSequences dense(*run_.backend, golden.config, run_.kv_format(), 3, 200);
  for (size_t step = 0; step < 10; ++step) {
    const int32_t token = golden.forced[step];
    run_.Decode(dense, {0, 1, 2}, {token, token, token});
    if (step == 0) continue;
    EXPECT_LE(run_.decode_allocations, num_products * kAllocationsPerProduct) << "step " << step;
  }
}

TEST_P(TransformerGoldenTest, RowsOfABatchDoNotInfluenceEachOther) {
  const GoldenModel& golden = run_.golden;
  const auto vocab = static_cast<size_t>(golden.config.vocab_size);
  // Three sequences of different lengths, then each of them alone.
  const std::vector<size_t> lengths = {101, 3, 40};
  const auto prompt_of = [&](size_t i) {
    return std::vector<int32_t>(golden.prompt.end() - static_cast<int64_t>(lengths[i]),
                                golden.prompt.end());
  };
  std::vector<std::vector<float>> together(lengths.size());
  DenseSequences batched(*run_.backend, golden.config, run_.kv_format(), 3, 200);
  for (size_t i = 0; i < lengths.size(); ++i) {
    run_.Prefill(prompt_of(i), {128}, &batched, static_cast<int>(i));
  }
  constexpr size_t kSteps = 8;
  for (size_t step = 0; step < kSteps; ++step) {
    const auto logits =
        run_.Decode(batched, {2, 0, 1},
                    {golden.forced[step + 2], golden.forced[step], golden.forced[step + 1]});
    const size_t order[] = {2, 0, 1};
    for (size_t row = 0; row < 3; ++row) {
      auto& rows = together[order[row]];
      rows.insert(rows.end(), logits.begin() + static_cast<int64_t>(row * vocab),
                  logits.begin() + static_cast<int64_t>((row + 1) * vocab));
    }
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    DenseSequences single(*run_.backend, golden.config, run_.kv_format(), 1, 200);
    run_.Prefill(prompt_of(i), {128}, &single);
    std::vector<float> alone;
    for (size_t step = 0; step < kSteps; ++step) {
      const auto logits = run_.Decode(single, {0}, {golden.forced[step + i]});
      alone.insert(alone.end(), logits.begin(), logits.end());
    }
    EXPECT_TRUE(alone == together[i])
        << "sequence " << i << ", relative difference " << NormError(together[i], alone);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TransformerGoldenTest,
                         ::testing::Combine(::testing::ValuesIn(test_support::AvailableBackends()),
                                            ::testing::ValuesIn(test_support::GoldenModelNames())),
                         [](const auto& info) {
                           std::string name =
                               std::get<0>(info.param).name + "_" + std::get<1>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class TransformerTest : public ::testing::TestWithParam<BackendParam> {
 protected:
  absl::Status Load(const TransformerOptions& options) {
    const GoldenModel golden(kModel);
    auto backend = GetParam().create();
    return Transformer::Load(*backend->device, *backend->ops, golden.config, golden.checkpoint,
                             options)
        .status();
  }
  void ExpectInvalid(const absl::Status& status, const std::string& part) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }

  static constexpr char kModel[] = "qwen3-d64-untied-f32";
};

TEST_P(TransformerTest, OptionsAreChecked) {
  EXPECT_TRUE(Load({}).ok());
  ExpectInvalid(Load({.max_positions = 257}), "256");
  ExpectInvalid(Load({.max_positions = -1}), "-1");
  ExpectInvalid(Load({.max_prefill_rows = 0}), "at least one row");
  ExpectInvalid(Load({.max_decode_rows = 0}), "at least one row");
}

TEST_P(TransformerTest, ALongerContextNamesTheScalingThatHasIt) {
  const auto backend = GetParam().create();
  ModelConfig config = *NamedModelShape("tiny");
  config.family = ModelFamily::kQwen2;
  config.max_positions = config.context_length = 32768;
  const auto load = [&] {
    return Transformer::LoadRandom(*backend->device, *backend->ops, config,
                                   {.max_positions = 65536})
        .status();
  };
  ExpectInvalid(load(), "the model has 1 to 32768, more with --rope-scaling yarn:4:32768");
  ASSERT_TRUE(ApplyRopeScaling("yarn:4:32768", config).ok());
  EXPECT_TRUE(load().ok()) << load();
}

TEST_P(TransformerTest, MemoryOfIsWhatLoadAllocatesBesideTheWeights) {
  // The second has a table of RoPE for queries, the third one for a part of each head.
  for (const char* const name :
       {kModel, "ministral3-d64-yarn-bf16", "phi3-d64-partial-long-bf16"}) {
    Runner run(GetParam(), name);
    // Operations may have working memory of their own.
    const auto fresh = GetParam().create();
    EXPECT_EQ(run.backend->device->allocated_bytes(MemoryPurpose::kActivations) -
                  fresh->device->allocated_bytes(MemoryPurpose::kActivations),
              Transformer::MemoryOf(
                  run.golden.config, GetParam().name == "Cuda" ? kCudaNeeds : kCpuNeeds,
                  {.max_prefill_rows = 128, .max_decode_rows = 4})[MemoryPurpose::kActivations])
        << name;
  }
}

// Rows and columns of zeros have no largest number to be scaled by.
TEST_P(TransformerTest, PaddedHeadsMayBeRoundedToCodes) {
  for (const KeptWeights keep : {KeptWeights::kFp8, KeptWeights::kInt4}) {
    Runner run(GetParam(), GoldenModel("llama-d80-untied-bf16"), keep);
    const DeviceData::Matrix hidden = run.Prefill(run.golden.prompt, {101});
    const auto last = static_cast<size_t>(run.golden.prefill_positions.size()) - 1;
    const double error = NormError(run.LogitsOf(hidden.view, run.golden.prefill_positions[last]),
                                   run.golden.PrefillLogits(last));
    EXPECT_LT(error, keep == KeptWeights::kFp8 ? 0.1 : 0.3);
    EXPECT_GT(error, 1e-3);
  }
}

TEST_P(TransformerTest, ShapesAndPositionsAreChecked) {
  Runner run(GetParam(), kModel);
  Stream& stream = *run.backend->stream;
  Transformer& model = *run.model;
  const ModelConfig& config = model.config();
  const LayerKv kv = run.NewLayerKv(300);
  const auto hidden = run.data.Poisoned(200, config.hidden_size);
  const auto wide = run.data.Poisoned(4, config.hidden_size + 1);
  const auto logits =
      run.data.UploadMatrix(std::vector<float>(static_cast<size_t>(5 * config.vocab_size)), 5,
                            config.vocab_size, DType::kF32);
  ExpectInvalid(model.PrefillLayer(stream, 0, hidden.view, 0, kv, 1), "1 to 128");
  ExpectInvalid(model.PrefillLayer(stream, 0, hidden.view.Rows(0, 0), 0, kv, 0), "0 rows");
  ExpectInvalid(model.PrefillLayer(stream, 0, wide.view, 0, kv, 1), "hidden");
  ExpectInvalid(model.PrefillLayer(stream, 2, hidden.view.Rows(0, 4), 0, kv, 4), "layer 2 of 2");
  ExpectInvalid(model.PrefillLayer(stream, 0, hidden.view.Rows(0, 4), 253, kv, 4), "256");
  ExpectInvalid(model.PrefillLayer(stream, 0, hidden.view.Rows(0, 4), -1, kv, 4), "-1");
  ExpectInvalid(model.PrefillLayer(stream, 0, hidden.view.Rows(0, 4), 0, kv, 5), "5 rows of 4");
  ExpectInvalid(model.PrefillLayer(stream, 0, hidden.view.Rows(0, 4), 0, kv, -1), "-1 rows of 4");
  ExpectInvalid(model.Logits(stream, hidden.view.Rows(0, 1), logits.view), "logits");
  ExpectInvalid(model.Logits(stream, wide.view, logits.view.Rows(0, 4)), "hidden");
  const DeviceBuffer ids = run.data.Upload(std::vector<int32_t>(8, 0));
  const auto span = ids.as<const int32_t>();
  const auto attend = [](uint32_t, const MatrixView&, const MatrixView&, const MatrixView&,
                         const MatrixView&) { return absl::AbortedError("called"); };
  ExpectInvalid(model.Embed(stream, span, hidden.view), "hidden");
  ExpectInvalid(model.Decode(stream, span.first(5), span.first(5), attend, logits.view), "5 rows");
  ExpectInvalid(model.Decode(stream, span.first(0), span.first(0), attend, logits.view), "0 rows");
  ExpectInvalid(model.Decode(stream, span.first(2), span.first(3), attend, logits.view.Rows(0, 2)),
                "positions");
  ExpectInvalid(model.Decode(stream, span.first(2), span.first(2), attend, logits.view), "logits");
  // What the callback returns ends the step.
  EXPECT_EQ(
      model.Decode(stream, span.first(2), span.first(2), attend, logits.view.Rows(0, 2)).code(),
      absl::StatusCode::kAborted);
}

// A setting stands for the same numbers in config.json, for which transformers computed the logits.
TEST_P(TransformerTest, ScalingOfRopeMayBeSetBesideConfigJson) {
  const std::string name = "qwen2-d128-yarn-bf16";
  auto json =
      nlohmann::json::parse(std::ifstream(test_support::GoldenModelFolder(name) + "/config.json"));
  ASSERT_EQ(json["rope_scaling"]["factor"], 4.0);
  json.erase("rope_scaling");
  json["max_position_embeddings"] = 64;
  const auto plain = ReadModelConfig(*common::JsonReader::ParseObject(json.dump(), "config.json"));
  ASSERT_TRUE(plain.ok()) << plain.status();
  for (const bool scaled : {false, true}) {
    GoldenModel golden(name);
    golden.config = *plain;
    if (scaled) {
      ASSERT_TRUE(ApplyRopeScaling("yarn:4", golden.config).ok());
    } else {
      golden.config.context_length = 256;
    }
    Runner run(GetParam(), std::move(golden));
    const DeviceData::Matrix hidden = run.Prefill(run.golden.prompt, {128});
    double worst = 0;
    for (size_t row = 0; row < run.golden.prefill_positions.size(); ++row) {
      const auto logits = run.LogitsOf(hidden.view, run.golden.prefill_positions[row]);
      worst = std::max(worst, NormError(logits, run.golden.PrefillLogits(row)));
    }
    EXPECT_EQ(worst <= run.tolerance(), scaled) << worst;
  }
}

// A family whose tensors have other names and lie together is a list of names.
TEST_P(TransformerTest, AFamilyThatFusesTensorsComputesTheSame) {
  for (const char* name : {"llama-d64-untied-bf16", "qwen2-d128-yarn-bf16", "qwen3-d128-tied-bf16",
                           "llama-fp8-ct-channel"}) {
    Runner apart(GetParam(), name);
    GoldenModel golden(name);
    test_support::TempFolder folder;
    folder.Write("model.safetensors", test_support::RenamedWeights(golden));
    golden.config.names = &test_support::kRenamedNames;
    auto checkpoint = Checkpoint::Open(folder.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    golden.checkpoint = *std::move(checkpoint);
    Runner fused(GetParam(), std::move(golden));
    const std::vector<int32_t>& prompt = apart.golden.prompt;
    const auto expected = apart.data.Values(apart.Prefill(prompt, {128}));
    EXPECT_TRUE(fused.data.Values(fused.Prefill(prompt, {128})) == expected) << name;
    // Keys are balanced as they were.
    EXPECT_TRUE(fused.data.Download<uint16_t>(fused.kv_buffer) ==
                apart.data.Download<uint16_t>(apart.kv_buffer))
        << name;
  }
}

TEST_P(TransformerTest, LayersWithoutRopeDoNotSeePositions) {
  const std::unique_ptr<Backend> backend = GetParam().create();
  DeviceData data(*backend);
  const auto rows_are_equal = [&](const std::vector<uint32_t>& layers_without_rope) {
    ModelConfig config = *NamedModelShape("tiny");
    config.layers_without_rope = layers_without_rope;
    auto model = Transformer::LoadRandom(*backend->device, *backend->ops, config, {});
    EXPECT_TRUE(model.ok()) << model.status();
    const DeviceBuffer ids = data.Upload(std::vector<int32_t>{3, 3});
    const DeviceBuffer positions = data.Upload(std::vector<int32_t>{0, 7});
    const auto logits = data.UploadMatrix(
        std::vector<float>(static_cast<size_t>(2 * config.vocab_size), test_support::kNan), 2,
        config.vocab_size, DType::kF32);
    // In the place of attention: something that depends on the queries.
    const auto attention = [&](uint32_t, const MatrixView& queries, const MatrixView&,
                               const MatrixView&, const MatrixView& out) {
      return backend->ops->model().SiluMul(*backend->stream,
                                           {.gate = queries, .up = queries, .out = out});
    };
    EXPECT_TRUE((*model)
                    ->Decode(*backend->stream, ids.as<const int32_t>(),
                             positions.as<const int32_t>(), attention, logits.view)
                    .ok());
    const std::vector<float> values = data.Values(logits);
    return std::equal(values.begin(), values.begin() + config.vocab_size,
                      values.begin() + config.vocab_size);
  };
  EXPECT_TRUE(rows_are_equal({0, 1}));
  EXPECT_FALSE(rows_are_equal({0}));
  EXPECT_FALSE(rows_are_equal({}));
}

INSTANTIATE_TEST_SUITE_P(Backends, TransformerTest,
                         ::testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
