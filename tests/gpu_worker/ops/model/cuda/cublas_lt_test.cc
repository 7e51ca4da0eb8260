#include "gpu_worker/ops/model/cuda/cublas_lt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <fstream>
#include <iterator>
#include <string>

namespace retroinfer::cuda {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string LoadedLibraries() {
  std::ifstream maps("/proc/self/maps");
  return {std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>()};
}

// Whether a thread with as little stack as those of the metrics' HTTP library starts and ends.
bool SmallThreadsRun() {
  constexpr size_t kStackBytes = 100 * 1024;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread;
  const int error = pthread_create(
      &thread, &attributes, [](void*) -> void* { return nullptr; }, nullptr);
  if (error == 0) pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  return error == 0;
}

// One test: the first call of a process is the one that opens the library.
TEST(CublasLtTest, IsOpenedWhenItIsNeededAndLeavesSmallThreadsTheirStack) {
  EXPECT_THAT(LoadedLibraries(), Not(HasSubstr("libcublasLt")));
  EXPECT_TRUE(SmallThreadsRun());
  const absl::StatusOr<const CublasLt*> lt = CublasLt::Load();
  if (!lt.ok()) {
    EXPECT_EQ(lt.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(lt.status().message()), HasSubstr("LD_LIBRARY_PATH"));
    EXPECT_EQ(CublasLt::Load().status(), lt.status());
    GTEST_SKIP() << "cuBLASLt is not here: " << lt.status();
  }
  EXPECT_THAT(LoadedLibraries(), HasSubstr("libcublasLt"));
  EXPECT_TRUE(SmallThreadsRun()) << "its thread storage is taken out of every thread's stack";
  EXPECT_EQ(*CublasLt::Load(), *lt);
  const CublasLt& functions = **lt;
  EXPECT_STREQ(functions.get_status_string(CUBLAS_STATUS_SUCCESS), "success");
  // Needs no GPU: a description of a product lives in the host's memory.
  cublasLtMatmulDescOpaque_t description;
  EXPECT_EQ(
      functions.matmul_desc_init(&description, sizeof(description), CUBLAS_COMPUTE_32F, CUDA_R_32F),
      CUBLAS_STATUS_SUCCESS);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  EXPECT_EQ(functions.matmul_desc_set_attribute(&description, CUBLASLT_MATMUL_DESC_TRANSA,
                                                &transposed, sizeof(transposed)),
            CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace retroinfer::cuda
