#include "gpu_worker/model/gguf/gguf_model.h"

#include <gtest/gtest.h>

#include "tests/gpu_worker/model/gguf/gguf_text.h"
#include "tests/gpu_worker/model/gguf/golden_gguf.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::GoldenGgufModel;

TEST(GgufModelTest, AllPartsComeFromTheFile) {
  const auto model = OpenGgufModel(GoldenGgufModel("llama"), "name");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->name(), "name");
  EXPECT_TRUE((*model)->HasWeights());
  const auto config = (*model)->ReadConfig();
  ASSERT_TRUE(config.ok()) << config.status();
  const auto generation = (*model)->ReadGeneration(*config);
  ASSERT_TRUE(generation.ok()) << generation.status();
  EXPECT_EQ(generation->eos_token_ids.size(), 2u);  // <|eot_id|> and <|end_of_text|>
  const auto tokenizer = (*model)->ReadTokenizer();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_LE((*tokenizer)->vocab_size(), config->vocab_size);
  EXPECT_TRUE((*tokenizer)->config().chat_template.has_value());
  const auto weights = (*model)->OpenWeights(*config);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_TRUE(weights->Find("output_norm.weight", {config->hidden_size}).ok());
}

// The model outlives what it was opened by, and the weights outlive the model.
TEST(GgufModelTest, WeightsOutliveTheModel) {
  absl::StatusOr<Checkpoint> weights = absl::UnknownError("");
  {
    const auto model = OpenGgufModel(GoldenGgufModel("qwen3"), "name");
    weights = (*model)->OpenWeights((*model)->ReadConfig().value());
  }
  ASSERT_TRUE(weights.ok()) << weights.status();
  const HostTensor norm = weights->tensors().at("output_norm.weight");
  std::vector<std::byte> memory;
  EXPECT_EQ(norm.Bytes(0, norm.num_bytes(), memory).size(), 24 * sizeof(float));
}

TEST(GgufModelTest, AFileThatIsNoneIsRefused) {
  const test_support::TempFolder folder;
  const auto model = OpenGgufModel(folder.Write("x.gguf", "GGML"), "name");
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace retroinfer
