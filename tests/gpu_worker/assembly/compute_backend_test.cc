#include "gpu_worker/assembly/compute_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer {
namespace {

ServedEngineOptions WithTypes(const char* compute, const char* kv, const char* index = "auto") {
  ServedEngineOptions options;
  options.compute_dtype = compute;
  options.kv_dtype = kv;
  options.index_dtype = index;
  options.num_threads = 1;
  return options;
}

TEST(ComputeBackendTest, KvPagesFollowTheComputationUnlessToldOtherwise) {
  EXPECT_EQ(CreateCpuBackend(WithTypes("auto", "auto"))->kv_format, kBf16Kv);
  EXPECT_EQ(CreateCpuBackend(WithTypes("f32", "auto"))->kv_format, kF32Kv);
  EXPECT_EQ(CreateCpuBackend(WithTypes("f32", "bf16"))->kv_format, kBf16Kv);
  EXPECT_EQ(CreateCpuBackend(WithTypes("f32", "bf16"))->compute_dtype, DType::kF32);
  EXPECT_EQ(CreateCpuBackend(WithTypes("bf16", "auto"))->device->info().backend, "cpu");
}

TEST(ComputeBackendTest, RefusesTypesThatItDoesNotHave) {
  EXPECT_EQ(CreateCpuBackend(WithTypes("int8", "auto")).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CreateCpuBackend(WithTypes("auto", "fp8")).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ComputeBackendTest, TheIndexMayHaveATypeOfItsOwn) {
  EXPECT_EQ(CreateCpuBackend(WithTypes("auto", "auto", "int8"))->kv_format, kBf16Int8Kv);
  EXPECT_EQ(CreateCpuBackend(WithTypes("auto", "bf16", "bf16"))->kv_format, kBf16Kv);
  EXPECT_EQ(CreateCpuBackend(WithTypes("f32", "auto", "f32"))->kv_format, kF32Kv);
  EXPECT_EQ(CreateCpuBackend(WithTypes("auto", "int8"))->kv_format, kInt8Kv);
  EXPECT_EQ(CreateCpuBackend(WithTypes("auto", "int8", "int8"))->kv_format, kInt8Kv);
  EXPECT_EQ(CreateCpuBackend(WithTypes("auto", "auto", "coded"))->kv_format, kBf16CodedKv);
  EXPECT_EQ(CreateCpuBackend(WithTypes("auto", "int8", "coded"))->kv_format, kInt8CodedKv);
  EXPECT_EQ(CreateCpuBackend(WithTypes("f32", "auto", "coded")).status().code(),
            absl::StatusCode::kInvalidArgument);
  const absl::Status refused = CreateCpuBackend(WithTypes("f32", "auto", "int8")).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(refused.message()),
      testing::AllOf(testing::HasSubstr("--index-dtype"),
                     testing::HasSubstr("bf16 with an index in bf16, int8, coded, packed")));
}

TEST(ComputeBackendTest, RanksAreGivenOneGpuEach) {
  ServedEngineOptions options = WithTypes("auto", "auto");
  options.num_ranks = 2;
  for (const char* list : {"cuda:1,1", "cuda:1,", "cuda:,1", "cuda:1,x", "cuda:1,-2"}) {
    options.device = list;
    EXPECT_EQ(CreateBackend(options).status().code(), absl::StatusCode::kInvalidArgument) << list;
  }
  options.device = "cuda:5,6,7";
  const absl::Status status = CreateBackend(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("names 3 GPUs"));
}

TEST(ComputeBackendTest, RanksShareTheCores) {
  ServedEngineOptions options = WithTypes("auto", "auto");
  options.num_threads = 6;
  EXPECT_EQ(CreateCpuBackend(options)->device->info().num_processors, 6);
  options.num_ranks = 4;
  EXPECT_EQ(CreateCpuBackend(options)->device->info().num_processors, 1);
  options.num_ranks = 2;
  options.rank = 1;
  EXPECT_EQ(CreateCpuBackend(options)->device->info().num_processors, 3);
}

TEST(ComputeBackendTest, TheDeviceIsNamedByAFlag) {
  ServedEngineOptions options = WithTypes("auto", "auto");
  options.device = "cpu";
  EXPECT_EQ(CreateBackend(options)->device->info().backend, "cpu");
  EXPECT_GT(CreateBackend(options)->memory_bytes, 0u);
  EXPECT_EQ(CreateBackend(options)->weight_source, WeightSource::kMapping);
  for (const char* name : {"tpu", "cuda:", "cuda:-1", "cuda:x", ""}) {
    options.device = name;
    EXPECT_EQ(CreateBackend(options).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  options.device = "cuda:4711";
  EXPECT_EQ(CreateBackend(options).status().code(), absl::StatusCode::kFailedPrecondition);
  options.device = "auto";
  EXPECT_TRUE(CreateBackend(options).ok());
}

}  // namespace
}  // namespace retroinfer
