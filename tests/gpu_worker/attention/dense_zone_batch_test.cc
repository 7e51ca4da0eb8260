#include "gpu_worker/attention/dense_zone_batch.h"

#include <gtest/gtest.h>

#include <vector>

#include "gpu_worker/kv/kv_memory.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

class DenseZoneBatchTest : public testing::TestWithParam<test_support::BackendParam> {
 protected:
  void SetUp() override {
    backend_ = GetParam().create();
    memory_ = KvMemory::Create(*backend_->device,
                               {.geometry = {.num_layers = 1, .num_kv_heads = 1, .head_dim = 64},
                                .dense_blocks = 16,
                                .meta_blocks = 0,
                                .max_sequences = 2,
                                .max_model_len = 4096})
                  .value();
    batch_ = std::make_unique<DenseZoneBatch>(
        DenseZoneBatch::CreateToAttend(*backend_->device, backend_->ops->attention(),
                                       *backend_->stream, memory_->dense_pool(), memory_->tables(),
                                       /*max_batch=*/2, /*num_query_heads=*/1)
            .value());
  }

  // The zone of a sequence whose next token is at `position`.
  DenseZone ZoneAt(SequenceKv& sequence, int64_t position) {
    sequence.num_tokens = position;
    SequenceKv* rows[] = {&sequence};
    const absl::Status status = batch_->BeginStep(rows);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(batch_->UploadStep().ok());
    return test_support::DeviceData(*backend_).Download<DenseZone>(batch_->zones()).front();
  }

  std::unique_ptr<test_support::Backend> backend_;
  std::unique_ptr<KvMemory> memory_;
  std::unique_ptr<DenseZoneBatch> batch_;
};

TEST_P(DenseZoneBatchTest, ZonesCountTheTokenThatTheStepAdds) {
  SequenceKv sequence;
  ASSERT_TRUE(memory_->Reserve({.dense_blocks = 4}, sequence));
  ASSERT_TRUE(batch_->WriteTable(sequence).ok());
  DenseZone zone = ZoneAt(sequence, 0);
  EXPECT_EQ(zone.num_sink_tokens, 1);
  EXPECT_EQ(zone.num_window_tokens, 0);
  zone = ZoneAt(sequence, 3);
  EXPECT_EQ(zone.num_sink_tokens, 4);
  EXPECT_EQ(zone.num_window_tokens, 0);
  zone = ZoneAt(sequence, 4);
  EXPECT_EQ(zone.num_window_tokens, 1);
  zone = ZoneAt(sequence, 4 + 191);
  EXPECT_EQ(zone.num_sink_tokens, 4);
  EXPECT_EQ(zone.num_window_tokens, 192);
  EXPECT_EQ(zone.block_ids, memory_->tables().Dense(sequence.table_row).device_data());
}

TEST_P(DenseZoneBatchTest, AWindowThatHasMovedCountsFromItsBeginning) {
  SequenceKv sequence;
  ASSERT_TRUE(memory_->Reserve({.dense_blocks = 4}, sequence));
  sequence.window_begin = kSinkTokens + 2048;
  EXPECT_EQ(ZoneAt(sequence, kSinkTokens + 2048 + 100).num_window_tokens, 101);
}

TEST_P(DenseZoneBatchTest, RefusesATokenWithoutABlockAndABatchWithoutRoom) {
  SequenceKv sequence;
  ASSERT_TRUE(memory_->Reserve({.dense_blocks = 4}, sequence));
  sequence.num_tokens = 4 + 192;
  SequenceKv* one[] = {&sequence};
  EXPECT_EQ(batch_->BeginStep(one).code(), absl::StatusCode::kInternal);
  sequence.num_tokens = 0;
  SequenceKv* three[] = {&sequence, &sequence, &sequence};
  EXPECT_EQ(batch_->BeginStep(three).code(), absl::StatusCode::kInternal);
}

TEST_P(DenseZoneBatchTest, RowsOfOneSequenceSeeThoseBeforeThem) {
  SequenceKv sequence;
  ASSERT_TRUE(memory_->Reserve({.dense_blocks = 4}, sequence));
  sequence.num_tokens = 3;
  SequenceKv* rows[] = {&sequence, &sequence};
  ASSERT_TRUE(batch_->BeginStep(rows).ok());
  ASSERT_TRUE(batch_->UploadStep().ok());
  const auto zones = test_support::DeviceData(*backend_).Download<DenseZone>(batch_->zones());
  EXPECT_EQ(zones[0].num_sink_tokens, 4);
  EXPECT_EQ(zones[0].num_window_tokens, 0);
  EXPECT_EQ(zones[1].num_sink_tokens, 4);
  EXPECT_EQ(zones[1].num_window_tokens, 1);
  sequence.num_tokens = 4 + 191;  // the second one has no block
  EXPECT_EQ(batch_->BeginStep(rows).code(), absl::StatusCode::kInternal);
}

// With equal keys, a token attends to the mean of the values so far, its own included.
TEST_P(DenseZoneBatchTest, ALayerAppendsATokenAndAttendsToTheZone) {
  test_support::DeviceData data(*backend_);
  SequenceKv sequence;
  ASSERT_TRUE(memory_->Reserve({.dense_blocks = 2}, sequence));
  ASSERT_TRUE(batch_->WriteTable(sequence).ok());
  const auto keys = data.Activations(std::vector<float>(64, 0.25f), 1, 64);
  SequenceKv* rows[] = {&sequence};
  const float values[] = {0.5f, 1.0f}, means[] = {0.5f, 0.75f};
  for (size_t i = 0; i < 2; ++i) {
    sequence.num_tokens = static_cast<int64_t>(i);
    ASSERT_TRUE(batch_->BeginStep(rows).ok());
    ASSERT_TRUE(batch_->UploadStep().ok());
    const auto value = data.Activations(std::vector<float>(64, values[i]), 1, 64);
    const auto out = data.Poisoned(1, 64);
    const absl::Status status =
        batch_->DecodeLayer(0, {.scale = 0.125f}, keys.view, keys.view, value.view, out.view);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(data.Values(out), std::vector<float>(64, means[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DenseZoneBatchTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
