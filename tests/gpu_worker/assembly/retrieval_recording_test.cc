#include "gpu_worker/assembly/retrieval_recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "gpu_worker/assembly/compute_backend.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class RetrievalRecordingTest : public testing::Test {
 protected:
  RetrievalRecordingTest() { options_.num_threads = 1; }

  test_support::TempFolder folder_;
  ServedEngineOptions options_;
  KvFormat format_;
};

TEST_F(RetrievalRecordingTest, IsNothingWithoutAName) {
  RetrievalRecording recording;
  ASSERT_TRUE(recording.Open(options_, format_).ok());
  const ComputeBackend backend = CreateCpuBackend(options_).value();
  const auto recorder = recording.TakeRecorder(*backend.device, {});
  ASSERT_TRUE(recorder.ok());
  EXPECT_EQ(*recorder, nullptr);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(RetrievalRecordingTest, EachRankHasAFileOfItsOwn) {
  options_.num_ranks = 2;
  options_.record_trace_file = folder_.path() + "/trace";
  RetrievalRecording recordings[2];
  for (options_.rank = 0; options_.rank < 2; ++options_.rank) {
    ASSERT_TRUE(recordings[options_.rank].Open(options_, format_).ok());
  }
  EXPECT_TRUE(fs::exists(folder_.path() + "/trace"));
  EXPECT_TRUE(fs::exists(folder_.path() + "/trace.rank1"));
}

TEST_F(RetrievalRecordingTest, WhatCannotBeIsToldBeforeAnythingIsLoaded) {
  options_.record_trace_file = folder_.path();
  const absl::Status folder = RetrievalRecording().Open(options_, format_);
  EXPECT_EQ(folder.code(), absl::StatusCode::kFailedPrecondition) << folder;
  EXPECT_THAT(std::string(folder.message()), HasSubstr("--record-trace: "));
  options_.record_trace_file = folder_.path() + "/trace";
  format_.token_code_bits = 4;
  const absl::Status pages = RetrievalRecording().Open(options_, format_);
  EXPECT_EQ(pages.code(), absl::StatusCode::kFailedPrecondition) << pages;
  EXPECT_THAT(std::string(pages.message()), HasSubstr("record with another index"));
}

}  // namespace
}  // namespace retroinfer
