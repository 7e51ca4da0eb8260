#include "gpu_worker/measuring/synthetic/synthetic_prefill.h"

#include <gtest/gtest.h>

#include "tests/gpu_worker/measuring/synthetic/fake_policy.h"
#include "tests/support/backends.h"

namespace retroinfer {
namespace {

TEST(SyntheticPrefillTest, APromptIsTakenOverBehindItsContext) {
  const auto backend = test_support::AvailableBackends().front().create();
  auto context =
      SyntheticContext::Create(*backend->device, *backend->ops,
                               {.geometry = {.num_layers = 2, .num_kv_heads = 1, .head_dim = 64},
                                .num_query_heads = 2,
                                .max_tokens = 1200});
  ASSERT_TRUE(context.ok()) << context.status();
  test_support::FakePolicy policy;
  SyntheticPrefill prefill(*backend->stream, *backend->background, policy, *context, 1000);
  EXPECT_EQ(prefill.Need({}, 50, 90).dense_blocks, 1050);
  EXPECT_EQ(prefill.Need({}, 50, 90).meta_blocks, 1090);

  SequenceKv sequence;
  sequence.prompt_tokens = 50;
  sequence.total_tokens = 90;
  const LayerKv of_prompt = {.capacity = 50};
  for (uint32_t layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(prefill.TakeLayer(sequence, layer, of_prompt).ok());
    EXPECT_EQ(sequence.prompt_tokens, 1050);
    EXPECT_EQ(sequence.total_tokens, 1090);
    EXPECT_EQ(policy.taken.capacity, 1200);
  }
  EXPECT_EQ(policy.layers, (std::vector<uint32_t>{0, 1}));
  ASSERT_TRUE(*prefill.FinishPrefill(sequence));
  EXPECT_EQ(sequence.num_tokens, 1050);
}

}  // namespace
}  // namespace retroinfer
