#include "gpu_worker/model/padded_heads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "gpu_worker/model/model_table.h"
#include "tests/gpu_worker/model/safetensors_text.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::SafetensorsText;
using test_support::TempFolder;
using test_support::TensorText;
using ::testing::HasSubstr;

constexpr uint32_t kOwn = 80, kServed = 128;
constexpr int64_t kHidden = 3;

ModelConfig Config(const TensorNames* names) {
  ModelConfig config;
  config.names = names;
  config.hidden_size = kHidden;
  config.intermediate_size = 4;
  config.num_layers = 1;
  config.num_query_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = kServed;
  config.stored_head_dim = kOwn;
  config.vocab_size = 5;
  config.tie_word_embeddings = true;
  config.qkv_bias = names == &kLlamaNames;
  return config;
}

// Bytes whose value says where they are.
std::string Bytes(int64_t numbers, int seed) {
  std::string bytes;
  for (int64_t i = 0; i < numbers * 2; ++i)
    bytes.push_back(static_cast<char>(1 + (i + seed) % 251));
  return bytes;
}

// All tensors of the model, as a checkpoint has them.
std::vector<TensorText> Stored(const ModelConfig& config) {
  ModelConfig own = config;
  own.head_dim = kOwn;
  std::vector<TensorText> tensors;
  const ModelTable table(own);
  for (const auto& [name, stored] : table.stored()) {
    int64_t numbers = 1;
    for (const int64_t extent : stored.shape) numbers *= extent;
    tensors.push_back(
        {name, "BF16", stored.shape, Bytes(numbers, static_cast<int>(tensors.size()))});
  }
  return tensors;
}

std::string AllBytes(const HostTensor& tensor, size_t piece) {
  std::string bytes;
  std::vector<std::byte> memory;
  for (size_t at = 0; at < tensor.num_bytes(); at += piece) {
    const auto part = tensor.Bytes(at, std::min(piece, tensor.num_bytes() - at), memory);
    bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  return bytes;
}

// `bytes` with zeros behind each `own` of them up to `served`.
std::string Padded(const std::string& bytes, size_t own, size_t served) {
  std::string padded;
  for (size_t at = 0; at < bytes.size(); at += own) {
    padded.append(bytes, at, own);
    padded.append(served - own, '\0');
  }
  return padded;
}

TEST(PaddedHeadsTest, SizesThatHeadsAreServedWith) {
  for (const uint32_t head_dim : kHeadDims) EXPECT_EQ(ServedHeadDim(head_dim), head_dim);
  EXPECT_EQ(ServedHeadDim(32), 64u);
  EXPECT_EQ(ServedHeadDim(72), 128u);
  EXPECT_EQ(ServedHeadDim(80), 128u);
  EXPECT_EQ(ServedHeadDim(96), 128u);
  EXPECT_EQ(ServedHeadDim(160), 256u);
  for (const int64_t head_dim : {0, 24, 65, 100, 264, 1 << 16}) {
    EXPECT_EQ(ServedHeadDim(head_dim), 0u) << head_dim;
  }
}

TEST(PaddedHeadsTest, ZerosFollowTheNumbersOfEachHead) {
  for (const TensorNames* const names : {&kLlamaNames, &kPhi3Names}) {
    const ModelConfig config = Config(names);
    const std::vector<TensorText> stored = Stored(config);
    TempFolder folder;
    folder.Write("model.safetensors", SafetensorsText(stored));
    auto checkpoint = Checkpoint::Open(folder.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    ASSERT_TRUE(PadHeads(config, *checkpoint).ok());
    EXPECT_TRUE(checkpoint->is_coded());
    size_t total = 0;
    for (const TensorText& tensor : stored) {
      SCOPED_TRACE(tensor.name);
      const HostTensor& padded = checkpoint->tensors().at(tensor.name);
      EXPECT_EQ(padded.shape, ModelTable(config).stored().at(tensor.name).shape);
      total += padded.num_bytes();
      std::string want = tensor.bytes;
      const bool of_layer = tensor.name.find("self_attn") != std::string::npos;
      const bool is_output = tensor.name.find("o_proj") != std::string::npos;
      const bool is_vector = tensor.shape.size() == 1;
      const size_t width = is_output || is_vector ? 2 : 2 * kHidden;  // bytes of a number's row
      if (of_layer) want = Padded(want, kOwn * width, kServed * width);
      for (const size_t piece : {size_t{1} << 20, size_t{256}, size_t{14}}) {
        EXPECT_EQ(AllBytes(padded, piece), want) << piece;
      }
    }
    EXPECT_EQ(checkpoint->total_bytes(), total);
  }
}

TEST(PaddedHeadsTest, RefusesOtherShapesAndChangesNothing) {
  const ModelConfig config = Config(&kLlamaNames);
  std::vector<TensorText> stored = Stored(config);
  for (TensorText& tensor : stored) {
    if (tensor.name.find("q_proj.weight") == std::string::npos) continue;
    tensor.shape = {2 * 81, kHidden};
    tensor.bytes = Bytes(2 * 81 * kHidden, 1);
  }
  TempFolder folder;
  folder.Write("model.safetensors", SafetensorsText(stored));
  auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const absl::Status status = PadHeads(config, *checkpoint);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("q_proj.weight"));
  EXPECT_FALSE(checkpoint->is_coded());
}

TEST(PaddedHeadsTest, HeadsOfServedSizesStay) {
  ModelConfig config = Config(&kLlamaNames);
  config.stored_head_dim = 0;
  Checkpoint empty;
  EXPECT_TRUE(PadHeads(config, empty).ok());
}

}  // namespace
}  // namespace retroinfer
