#include "gpu_worker/model/model_shapes.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

TEST(ModelShapesTest, NamedShapesAreThoseOfTheirModels) {
  const ModelConfig llama = *NamedModelShape("llama-3.1-8b");
  EXPECT_EQ(llama.query_size(), 4096);
  EXPECT_EQ(llama.group_size(), 4u);
  EXPECT_EQ(llama.context_length, 131'072);
  const ModelConfig large = *NamedModelShape("llama-3.1-70b");
  EXPECT_EQ(large.query_size(), large.hidden_size);
  EXPECT_EQ(large.group_size(), 8u);
  EXPECT_EQ(large.num_layers, 80u);
  EXPECT_EQ(large.context_length, 131'072);
  const ModelConfig qwen = *NamedModelShape("qwen2.5-7b");
  EXPECT_EQ(qwen.query_size(), qwen.hidden_size);
  EXPECT_EQ(qwen.group_size(), 7u);
  EXPECT_TRUE(qwen.qkv_bias);
  EXPECT_EQ(NamedModelShape("llama-3-8b")->vocab_size, 128'256);
  const ModelConfig experts = *NamedModelShape("qwen3-30b-a3b");
  EXPECT_EQ(experts.experts.count, 128);
  EXPECT_EQ(experts.group_size(), 8u);
  EXPECT_EQ(experts.context_length, 262'144);
}

TEST(ModelShapesTest, EveryShapeHasAUsableGeometry) {
  for (const char* name : {"llama-3-8b", "llama-3.1-8b", "llama-3.1-70b", "qwen2.5-7b",
                           "qwen3-30b-a3b", "tiny", "tiny-experts"}) {
    const auto config = NamedModelShape(name);
    ASSERT_TRUE(config.ok()) << name;
    EXPECT_TRUE(config->geometry(kBf16Kv).Validate().ok()) << name;
    EXPECT_EQ(config->num_query_heads % config->num_kv_heads, 0u) << name;
  }
}

TEST(ModelShapesTest, OtherNamesAreNotFound) {
  EXPECT_EQ(NamedModelShape("llama").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace retroinfer
