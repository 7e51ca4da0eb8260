// For tests of steps that try drafts: an answer with them is the one without, in all that a client
// gets.
#pragma once

#include <gtest/gtest.h>

#include "tests/support/in_process_worker.h"

namespace retroinfer::test_support {

// Waits for both. `plain` had a token a step.
inline void ExpectSameAnswers(CollectingSink& plain, CollectingSink& tried) {
  const GenerationResult& want = plain.Wait();
  const GenerationResult& got = tried.Wait();
  ASSERT_TRUE(want.status.ok()) << want.status;
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(tried.tokens(), plain.tokens());
  EXPECT_EQ(tried.logprobs(), plain.logprobs());
  EXPECT_EQ(tried.text(), plain.text());
  EXPECT_EQ(got.reason, want.reason);
  EXPECT_EQ(got.matched_stop, want.matched_stop);
  EXPECT_EQ(got.matched_token, want.matched_token);
  EXPECT_EQ(got.completion_tokens, want.completion_tokens);
  EXPECT_EQ(want.drafts_accepted + want.drafts_rejected, 0);
  EXPECT_LT(got.drafts_accepted, got.completion_tokens);
}

}  // namespace retroinfer::test_support
