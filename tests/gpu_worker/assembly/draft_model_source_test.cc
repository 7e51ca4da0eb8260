#include "gpu_worker/assembly/draft_model_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "build_paths.h"

namespace retroinfer {
namespace {

using testing::HasSubstr;

const std::string kNeedle = RETROINFER_SOURCE_DIR "/models/needle";

class DraftModelSourceTest : public testing::Test {
 protected:
  DraftModelSourceTest() {
    options_.model_folder = kNeedle;
    options_.draft_model_folder = kNeedle;
    options_.num_threads = 1;
    backend_ = CreateCpuBackend(options_).value();
  }
  absl::StatusOr<DraftModelSource> Open() {
    const absl::StatusOr<ModelSource> served = ModelSource::Open(options_);
    if (!served.ok()) return served.status();
    return DraftModelSource::Open(options_, *served, backend_);
  }

  ServedEngineOptions options_;
  ComputeBackend backend_;
};

TEST_F(DraftModelSourceTest, AModelIsPlannedForAndLoaded) {
  options_.rope_scaling = "yarn:2";  // of the served model alone
  absl::StatusOr<DraftModelSource> source = Open();
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->name(), "needle");
  ASSERT_TRUE(source->LoadWeights(backend_).ok());
  EXPECT_GT(source->allocated_bytes(), 0u);
  const auto planned = source->ToPlan(backend_);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_GE(planned->weight_bytes, source->allocated_bytes());
  EXPECT_EQ(planned->model.context_length, 131072);
  const auto sizes = DraftModel::SizesFor(planned->model, planned->model.vocab_size, 1000, 2);
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  const auto model = source->TakeModel(backend_, *sizes);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->max_positions(), sizes->window_tokens);
}

TEST_F(DraftModelSourceTest, AModelWithOtherTokensIsRefused) {
  options_.draft_model_folder =
      RETROINFER_SOURCE_DIR "/tests/golden/gguf/qwen2-00001-of-00002.gguf";
  const absl::Status status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--draft-model: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("they need the same tokens"));
}

TEST_F(DraftModelSourceTest, WhatIsWrongWithItsFolderIsSaidOfIt) {
  options_.draft_model_folder = "/nonexistent/model";
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Open().status().message()),
              HasSubstr("--draft-model: there is no folder /nonexistent/model"));
}

TEST_F(DraftModelSourceTest, RandomWeightsHaveItsShape) {
  options_.load_format = "dummy";
  absl::StatusOr<DraftModelSource> source = Open();
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_TRUE(source->LoadWeights(backend_).ok());
}

}  // namespace
}  // namespace retroinfer
