#include "gpu_worker/server/context_saver.h"

#include <gtest/gtest.h>

#include "common/hash/segment_name.h"
#include "common/status/error_reason.h"
#include "gpu_worker/store_link/context_client.h"
#include "tests/support/context_harness.h"

namespace retroinfer {
namespace {

PrefixToSave Prefix(size_t tokens) {
  PrefixToSave prefix;
  prefix.name = "book";
  prefix.request.request_id = "save";
  prefix.request.prompt.assign(tokens, 5);
  prefix.request.sampling.max_tokens = 2;
  prefix.request.cache_salt = "salt";
  return prefix;
}

class ContextSaverTest : public testing::Test {
 protected:
  void Start(int computations) {
    harness_ = std::make_unique<ContextHarness>(computations);
    client_ = std::make_unique<ContextClient>(harness_->store().target());
    saver_ = std::make_unique<ContextSaver>(&harness_->worker().model(),
                                            &harness_->worker().engine(), &client_->stub());
  }
  absl::StatusOr<SavedPrefix> Save(PrefixToSave prefix, bool cancelled = false) {
    return saver_->Save(
        std::move(prefix), [this](const PrefillProgress&) { ++num_progress_; },
        [cancelled] { return cancelled; });
  }

  std::unique_ptr<ContextHarness> harness_;
  std::unique_ptr<ContextClient> client_;
  std::unique_ptr<ContextSaver> saver_;
  int num_progress_ = 0;
};

TEST_F(ContextSaverTest, ComputesWhatIsMissing) {
  Start(1);
  const auto saved = Save(Prefix(2500));
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->computed_tokens, 2500);
  EXPECT_EQ(harness_->worker().engine().submitted(), 1);
  const kvstore::v1::SaveContextRequest request = harness_->store().last_save();
  EXPECT_EQ(request.salt_hash(), std::string(common::SaltHash("salt").view()));
  EXPECT_EQ(request.sink_token_ids_size(), 4);
  EXPECT_EQ(request.segments_size(), 2);
  EXPECT_EQ(request.num_tokens(), 2500u);
  EXPECT_FALSE(request.has_time_to_live());
}

TEST_F(ContextSaverTest, ComputesNothingIfAllIsThere) {
  Start(0);
  PrefixToSave prefix = Prefix(2500);
  prefix.time_to_live = absl::Milliseconds(2500);
  const auto saved = Save(std::move(prefix));
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->computed_tokens, 0);
  EXPECT_EQ(harness_->worker().engine().submitted(), 0);
  EXPECT_EQ(harness_->store().last_save().time_to_live().nanos(), 500'000'000);
}

TEST_F(ContextSaverTest, SaysWhenATextIsTooShort) {
  Start(0);
  EXPECT_EQ(common::ReasonOf(Save(Prefix(1000)).status()).reason, "CONTEXT_TOO_SHORT");
}

TEST_F(ContextSaverTest, GivesUpIfWhatItComputesIsEvicted) {
  Start(100);
  EXPECT_EQ(Save(Prefix(2500)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(harness_->worker().engine().submitted(), 3);
}

TEST_F(ContextSaverTest, CanBeCancelled) {
  Start(1);
  EXPECT_EQ(Save(Prefix(2500), true).status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace retroinfer
