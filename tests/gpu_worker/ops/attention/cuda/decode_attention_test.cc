// What only the CUDA backend promises of decode attention: a captured graph follows lengths that
// change in device memory.
#include "gpu_worker/ops/attention/cuda/decode_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

constexpr KvGeometry kGeometry = {2, 2, 128, kBf16Kv};
constexpr int64_t kGroup = 4;
constexpr int64_t kCols = kGeometry.num_kv_heads * kGroup * kGeometry.head_dim;
constexpr int64_t kBatch = 3;
constexpr int32_t kMaxWindow = 20'000;
constexpr size_t kNumBlocks = 1 + (kMaxWindow + kDenseBlockTokens - 1) / kDenseBlockTokens;
constexpr int64_t kMaxPages = 500;

class CudaDecodeAttentionTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const BackendParam& param : AvailableBackends()) {
      if (param.name == "Cuda") backend_ = param.create();
    }
    if (backend_ == nullptr) GTEST_SKIP() << "no GPU";
  }

  // Random elements, drawn once and repeated.
  static std::vector<std::byte> RandomPages(size_t num_pages) {
    const std::vector<std::byte> table = ToBytes(RandomNormal(1 << 16, 1), DType::kBf16);
    std::vector<std::byte> pages(num_pages * kPageBytes);
    for (size_t i = 0; i < num_pages; ++i) {
      const size_t from = i * 37 % (table.size() / kPageBytes) * kPageBytes;
      std::memcpy(pages.data() + i * kPageBytes, table.data() + from, kPageBytes);
    }
    return pages;
  }

  std::unique_ptr<Backend> backend_;
};

TEST_F(CudaDecodeAttentionTest, AGraphFollowsLengthsInDeviceMemory) {
  DeviceData data(*backend_);
  const cudaStream_t stream = static_cast<CudaStream&>(*backend_->stream).get();
  const DeviceBuffer pool =
      data.Upload(RandomPages(kNumBlocks * DensePoolView::BlockBytes(kGeometry) / kPageBytes));
  std::vector<DenseBlockId> ids(kNumBlocks);
  std::iota(ids.rbegin(), ids.rend(), 0);
  const DeviceBuffer blocks = data.Upload(ids);
  std::vector<PageRef> refs;
  for (size_t i = 0; i < kBatch * kGeometry.num_kv_heads * kMaxPages; ++i) {
    const std::byte* page = pool.bytes().device_data() + i * 7 % 900 * kPageBytes;
    refs.push_back({page, static_cast<int32_t>(1 + i % kGeometry.tokens_per_page()), 0});
  }
  const DeviceBuffer pages = data.Upload(refs);
  const DeviceBuffer zones = data.Allocate(kBatch * sizeof(DenseZone));
  const DeviceBuffer num_pages = data.Allocate(kBatch * kGeometry.num_kv_heads * sizeof(int32_t));
  const auto queries =
      data.Activations(RandomNormal(static_cast<size_t>(kBatch * kCols), 5), kBatch, kCols);
  const auto replayed = data.Poisoned(kBatch, kCols), called = data.Poisoned(kBatch, kCols);
  // Scratch may hold anything.
  const size_t scratch_bytes = backend_->ops->attention().DecodeAttentionScratchBytes(
      kBatch, kCols / kGeometry.head_dim, 128);
  const DeviceBuffer scratch = data.Upload(std::vector<std::byte>(scratch_bytes, std::byte{0xff}));
  DecodeAttentionArgs args = {.queries = queries.view,
                              .pool = {pool.bytes(), kGeometry},
                              .layer = 1,
                              .zones = zones.as<const DenseZone>(),
                              .pages = pages.as<const PageRef>(),
                              .num_pages = num_pages.as<const int32_t>(),
                              .max_pages = kMaxPages,
                              .estimate = {},
                              .scale = 0.1f,
                              .out = replayed.view,
                              .scratch = scratch.bytes()};
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_TRUE(backend_->ops->attention().DecodeAttention(*backend_->stream, args).ok());
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  args.out = called.view;
  std::vector<float> last;
  for (const int32_t window : {0, 100, 3000, kMaxWindow, 64}) {
    const auto* list = blocks.as<const DenseBlockId>().device_data();
    const std::vector<DenseZone> lengths = {
        {list, 4, window}, {list, 0, 0}, {list, 4, window / 10}};
    const int32_t p = std::min(window, static_cast<int32_t>(kMaxPages));
    const std::vector<int32_t> counts = {p, p / 2, 0, p, 1, 0};
    ASSERT_TRUE(backend_->device
                    ->Upload(*backend_->stream, std::as_bytes(std::span(lengths)), zones.bytes())
                    .ok());
    ASSERT_TRUE(backend_->device
                    ->Upload(*backend_->stream, std::as_bytes(std::span(counts)), num_pages.bytes())
                    .ok());
    ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    ASSERT_TRUE(backend_->ops->attention().DecodeAttention(*backend_->stream, args).ok());
    const std::vector<float> got = data.Values(replayed);
    EXPECT_EQ(got, data.Values(called)) << window;
    EXPECT_NE(got, last) << window;
    EXPECT_FALSE(std::any_of(got.begin(), got.end(), [](float x) { return std::isnan(x); }));
    // Neither tokens nor estimate: zeros.
    EXPECT_EQ(got[static_cast<size_t>(kCols)], 0.0f) << window;
    last = got;
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
}  // namespace retroinfer
