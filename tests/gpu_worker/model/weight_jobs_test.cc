#include "gpu_worker/model/weight_jobs.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "gpu_worker/model/host_numbers.h"
#include "tests/gpu_worker/model/golden_model.h"
#include "tests/gpu_worker/model/safetensors_text.h"
#include "tests/support/backends.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::SafetensorsText;
using test_support::TempFolder;
using ::testing::HasSubstr;

std::string RandomBytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Of a file that has a tensor's bytes from back to front.
class Reversed : public TensorCoding {
 public:
  explicit Reversed(size_t size) : size_(size) {}
  Extent StoredExtent(size_t begin, size_t size) const override {
    return {size_ - begin - size, size};
  }
  void Decode(std::span<const std::byte> stored, size_t, std::span<std::byte> out) const override {
    std::reverse_copy(stored.begin(), stored.end(), out.begin());
  }

 private:
  const size_t size_;
};

class WeightJobsTest : public ::testing::TestWithParam<test_support::BackendParam> {
 protected:
  // A checkpoint of tensors of these many bytes, "0", "1", ...
  void Write(const std::vector<size_t>& sizes) {
    std::vector<test_support::TensorText> tensors;
    for (size_t i = 0; i < sizes.size(); ++i) {
      contents_.push_back(RandomBytes(sizes[i], static_cast<uint32_t>(i)));
      tensors.push_back(
          {std::to_string(i), "BF16", {static_cast<int64_t>(sizes[i] / 2)}, contents_.back()});
    }
    folder_.Write("model.safetensors", SafetensorsText(tensors));
    auto checkpoint = Checkpoint::Open(folder_.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = std::make_unique<Checkpoint>(*std::move(checkpoint));
  }
  WeightJob::Part Part(size_t i, size_t at = 0) {
    const std::string name = std::to_string(i);
    return {name, checkpoint_->tensors().at(name), at};
  }
  std::string Download(DeviceSpan<std::byte> memory) {
    std::string text(memory.size(), '\0');
    EXPECT_TRUE(backend_->device
                    ->Download(*backend_->stream, memory,
                               std::as_writable_bytes(std::span(text.data(), text.size())))
                    .ok());
    EXPECT_TRUE(backend_->stream->Synchronize().ok());
    return text;
  }
  absl::Status Read(const std::vector<WeightJob>& jobs) {
    return RunWeightJobs(*backend_->device, jobs,
                         {.source = WeightSource::kReading, .num_threads = 4});
  }

  std::unique_ptr<test_support::Backend> backend_ = GetParam().create();
  TempFolder folder_;
  std::vector<std::string> contents_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_P(WeightJobsTest, EveryByteArrivesWhereItBelongsAndJobsFinishInOrder) {
  // Of one piece, of several, of a bit more, of nothing.
  constexpr size_t kPiece = CheckpointHasher::kPieceBytes;
  Write({100, kPiece, kPiece + 2, 3 * kPiece - 4, 0, 2, 2 * kPiece, 700, kPiece / 2});
  for (const WeightSource source : {WeightSource::kMapping, WeightSource::kReading}) {
    auto target = backend_->device->Allocate(700, MemoryPurpose::kWeights);
    ASSERT_TRUE(target.ok());
    std::vector<WeightJob> jobs;
    std::vector<size_t> finished;
    for (size_t i = 0; i < contents_.size(); ++i) {
      WeightJob& job = jobs.emplace_back();
      if (i == 7) {
        job.parts = {Part(7)};
        job.target = target->bytes();
        continue;
      }
      // Two tensors behind each other.
      const size_t second = (contents_[i].size() + 255) / 256 * 256;
      job.parts = {Part(i), Part(0, second)};
      job.staging_bytes = second + contents_[0].size();
      job.finish = [this, i, second, &finished](DeviceSpan<std::byte> memory) {
        EXPECT_TRUE(Download(memory.first(contents_[i].size())) == contents_[i]) << i;
        EXPECT_TRUE(Download(memory.subspan(second, contents_[0].size())) == contents_[0]) << i;
        finished.push_back(i);
        return absl::OkStatus();
      };
    }
    size_t done = 0, total = 0;
    const absl::Status status =
        RunWeightJobs(*backend_->device, jobs,
                      {.source = source, .num_threads = 4, .progress = [&](size_t now, size_t all) {
                         EXPECT_GT(now, done);
                         done = now;
                         total = all;
                       }});
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(finished, (std::vector<size_t>{0, 1, 2, 3, 4, 5, 6, 8}));
    EXPECT_TRUE(Download(target->bytes()) == contents_[7]);
    EXPECT_EQ(done, total);
  }
  EXPECT_EQ(backend_->device->allocated_bytes(MemoryPurpose::kWeights), 0u);
}

TEST_P(WeightJobsTest, HashesOnTheWayWhatTheMappingSays) {
  const test_support::GoldenModel model("qwen2-d64-group7-mixed");
  CheckpointHasher hasher(model.checkpoint);
  std::vector<WeightJob> jobs;
  for (const auto& [name, tensor] : model.checkpoint.tensors()) {
    WeightJob& job = jobs.emplace_back();
    job.parts.push_back({name, tensor, 0});  // to nowhere
  }
  EXPECT_FALSE(hasher.Finish(model.config).ok());
  ASSERT_TRUE(RunWeightJobs(*backend_->device, jobs,
                            {.source = WeightSource::kReading, .num_threads = 3, .hasher = &hasher})
                  .ok());
  const auto hashed = hasher.Finish(model.config);
  ASSERT_TRUE(hashed.ok()) << hashed.status();
  EXPECT_EQ(*hashed, *ModelFingerprint(model.config, model.checkpoint, {.num_threads = 2}));
}

TEST_P(WeightJobsTest, CodedTensorsAreDecodedOnTheWay) {
  constexpr size_t kPiece = CheckpointHasher::kPieceBytes;
  Write({3 * kPiece - 4, 6});
  for (const WeightSource source : {WeightSource::kMapping, WeightSource::kReading}) {
    for (const size_t i : {size_t{0}, size_t{1}}) {
      const size_t size = contents_[i].size();
      WeightJob job;
      job.parts = {Part(i)};
      job.parts[0].tensor.coding = std::make_shared<Reversed>(size);
      if (i == 1) job.parts[0].row_exponents = {0, 1, 0};  // as rows of the decoded tensor
      job.staging_bytes = size;
      std::string expected(contents_[i].rbegin(), contents_[i].rend());
      if (i == 1)
        ScaleRows(WeightType::kBf16, std::as_writable_bytes(std::span(expected)), 0, 1,
                  job.parts[0].row_exponents);
      job.finish = [&](DeviceSpan<std::byte> memory) {
        EXPECT_TRUE(Download(memory) == expected) << i;
        return absl::OkStatus();
      };
      const absl::Status status =
          RunWeightJobs(*backend_->device, {job}, {.source = source, .num_threads = 3});
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

TEST_P(WeightJobsTest, AFileThatWasCutMeanwhileIsDataLoss) {
  Write({CheckpointHasher::kPieceBytes * 3, 1000});
  std::filesystem::resize_file(folder_.File("model.safetensors"), 5'000'000);
  std::vector<WeightJob> jobs(2);
  jobs[0].parts = {Part(0)};
  jobs[0].staging_bytes = contents_[0].size();
  jobs[1].parts = {Part(1)};
  jobs[1].staging_bytes = contents_[1].size();
  bool finished = false;
  jobs[0].finish = [&](DeviceSpan<std::byte>) {
    finished = true;
    return absl::OkStatus();
  };
  const absl::Status status = Read(jobs);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("more bytes at"));
  EXPECT_FALSE(finished);
}

TEST_P(WeightJobsTest, AReadThatFailsSaysWhatWasRead) {
  Write({1000});
  std::vector<WeightJob> jobs(1);
  jobs[0].parts = {Part(0)};
  jobs[0].staging_bytes = 1000;
  const int folder = ::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY);
  jobs[0].parts[0].tensor.fd = folder;  // the system reads no bytes from it
  const absl::Status status = Read(jobs);
  ::close(folder);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("reading 1000 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor \"0\""));
}

TEST_P(WeightJobsTest, WhatAJobSaysEndsTheLoad) {
  Write({CheckpointHasher::kPieceBytes * 20, 1000});
  std::vector<WeightJob> jobs(40);
  for (WeightJob& job : jobs) {
    job.parts = {Part(0)};
    job.staging_bytes = contents_[0].size();
    job.finish = [](DeviceSpan<std::byte>) { return absl::ResourceExhaustedError("no room"); };
  }
  EXPECT_EQ(Read(jobs).message(), "no room");
  EXPECT_EQ(backend_->device->allocated_bytes(MemoryPurpose::kWeights), 0u);
}

INSTANTIATE_TEST_SUITE_P(Backends, WeightJobsTest,
                         ::testing::ValuesIn(test_support::AvailableBackends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace retroinfer
