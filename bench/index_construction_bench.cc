// Index construction on a GPU, one (layer, segment of 8,192 tokens) of Llama-3-8B's shape at a time
// (8 KV heads, head_dim 128, bf16): clustering, writing the segment to page-locked host memory,
// loading its index and reading its tokens back, the bus against plain copies of the same bytes in
// the same run. Medians over launches that go through several layers' KV, so that none is found in
// L2. Also whether the same keys give the same bytes twice. The suites of the operations check the
// results.
//
// usage: index_construction_bench     a table
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "bench/cuda/decode_attention_kernels.h"
#include "bench/support/measure.h"
#include "bench/support/must.h"
#include "common/kv/segment_layout.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/backend/cuda/cuda_ops.h"

namespace retroinfer {
namespace {

constexpr uint32_t kTokens = kPrefillSegmentTokens;
constexpr uint32_t kClusters = kTokens / kTokensPerCluster;
constexpr uint32_t kHeads = 8;
constexpr uint32_t kDim = 128;
constexpr int32_t kRounds = 10;
constexpr uint32_t kLayers = 4;  // sets of KV; 134 MB, more than twice the L2
constexpr size_t kHeadBytes = size_t{kTokens} * kDim * 2;
// What a prompt of 120K has of (layer, segment): 32 layers, 15 segments.
constexpr double kOfPrompt = 32 * 15;

using bench::Must;
void Must(cudaError_t code) {
  if (code != cudaSuccess) bench::Fail(cudaGetErrorString(code));
}

class Bench {
 public:
  Bench()
      : device_(Must(CudaDevice::Create({.ordinal = 0, .memory_utilization = 0.3}))),
        ops_(Must(CudaOps::Create(*device_))),
        stream_(Must(device_->CreateStream(StreamKind::kBackground))) {
    constexpr size_t kVectors = size_t{kHeads} * kClusters * kDim;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      keys_.push_back(Random(layer));
      values_.push_back(Random(kLayers + layer));
    }
    out_ = Allocate(2 * kHeads * kHeadBytes);
    assignment_ = Allocate(size_t{kHeads} * kTokens * sizeof(int32_t));
    sizes_ = Allocate(size_t{kHeads} * kClusters * sizeof(int32_t));
    centroids_ = Allocate(kVectors * sizeof(float));
    value_sums_ = Allocate(kVectors * sizeof(float));
    radii_ = Allocate(size_t{kHeads} * kClusters * sizeof(float));
    cluster_scratch_ =
        Allocate(ops_->index().ClusterKeysScratchBytes(kHeads, kDim, kTokens, kClusters));
    write_scratch_ = Allocate(size_t{8} * kHeads * (kTokens + kClusters));
    constexpr size_t kBlocks = kClusters / kClustersPerMetaBlock;
    pool_bytes_ = Allocate(kBlocks * MetaPoolView::BlockBytes(geometry_));
    next_page_ = Allocate(sizeof(uint32_t));
    std::vector<MetaBlockId> ids(kBlocks);
    std::iota(ids.begin(), ids.end(), MetaBlockId{0});
    meta_blocks_ = Allocate(kBlocks * sizeof(MetaBlockId));
    Must(cudaMemcpy(meta_blocks_.bytes().device_data(), ids.data(), kBlocks * sizeof(MetaBlockId),
                    cudaMemcpyHostToDevice));
    host_ = Must(device_->AllocateHost(size_t{layout_.max_pages} * kPageBytes));
    void* mapped = nullptr;
    Must(cudaHostGetDevicePointer(&mapped, host_.bytes().data(), 0));
    extent_ = {static_cast<std::byte*>(mapped), host_.size_bytes()};
  }

  int Run() {
    const double copy_out = Copy(cudaMemcpyDeviceToHost);
    const double copy_in = Copy(cudaMemcpyHostToDevice);
    std::printf("plain copies: %.1f GB/s to the host, %.1f GB/s from it\n", copy_out, copy_in);
    std::printf("%-26s %9s %12s %14s\n", "one layer of a segment", "ms", "", "120K, 32 layers");
    for (const bool centre : {false, true}) {
      const double ms = Milliseconds([&](uint32_t layer) { Cluster(layer, centre); });
      const double flops = 2.0 * kTokens * kClusters * kDim * (kRounds + 1) * kHeads;
      std::printf("%-26s %9.3f %5.0f TFLOP/s %11.0f ms\n",
                  centre ? "cluster_keys, centred" : "cluster_keys", ms, flops / ms / 1e9,
                  ms * kOfPrompt);
    }
    Cluster(0, false);
    ResetPages();
    Write(0);
    const uint32_t pages = NextPage() - layout_.first_kv_page;
    const double vectors = 2.0 * kHeads * kClusters * kDim * 2;
    const double index = vectors + kHeads * (12.0 * kClusters + 2.0 * kTokens);
    Report("write_segment", Milliseconds([&](uint32_t layer) {
             ResetPages();
             Write(layer);
           }),
           index + static_cast<double>(pages) * kPageBytes, copy_out);
    ResetPages();
    Write(0);
    Report("load_segment_index", Milliseconds([&](uint32_t) { Load(); }),
           vectors + 12.0 * kHeads * kClusters, copy_in);
    Report("read_segment_layer", Milliseconds([&](uint32_t) { Read(); }), 2.0 * kHeads * kHeadBytes,
           copy_in);
    const bool is_same = GivesTheSameBytes();
    std::printf("clustered and written twice: %s\n", is_same ? "the same bytes" : "DIFFERENT");
    return is_same ? 0 : 1;
  }

 private:
  static constexpr uint32_t kLayerOfExtent = 0;

  DeviceBuffer Allocate(size_t bytes) {
    return Must(device_->Allocate(bytes, MemoryPurpose::kMetaIndex));
  }
  DeviceBuffer Random(uint32_t seed) {
    DeviceBuffer buffer = Allocate(kHeads * kHeadBytes);
    bench::FillBf16(buffer.bytes().device_data(), buffer.size_bytes(), seed + 1, stream());
    return buffer;
  }
  cudaStream_t stream() { return static_cast<CudaStream&>(*stream_).get(); }
  LayerKv Kv(uint32_t layer) const {
    return {.keys = keys_[layer].bytes().device_data(),
            .values = values_[layer].bytes().device_data(),
            .num_kv_heads = kHeads,
            .head_dim = kDim,
            .capacity = kTokens,
            .dtype = DType::kBf16};
  }

  void Cluster(uint32_t layer, bool centre) {
    Must(ops_->index().ClusterKeys(*stream_, {.kv = Kv(layer),
                                              .num_tokens = kTokens,
                                              .num_clusters = kClusters,
                                              .rounds = kRounds,
                                              .centre_keys = centre,
                                              .assignment = assignment_.as<int32_t>(),
                                              .sizes = sizes_.as<int32_t>(),
                                              .centroids = centroids_.as<float>(),
                                              .value_sums = value_sums_.as<float>(),
                                              .radii = radii_.as<float>(),
                                              .scratch = cluster_scratch_.bytes()}));
  }
  void ResetPages() {
    Must(cudaMemcpyAsync(next_page_.bytes().device_data(), &layout_.first_kv_page, sizeof(uint32_t),
                         cudaMemcpyHostToDevice, stream()));
  }
  uint32_t NextPage() {
    uint32_t page = 0;
    Must(stream_->Synchronize());
    Must(cudaMemcpy(&page, next_page_.bytes().device_data(), sizeof(page), cudaMemcpyDeviceToHost));
    return page;
  }
  void Write(uint32_t layer) {
    Must(ops_->index().WriteSegment(*stream_, {.kv = Kv(layer),
                                               .num_tokens = kTokens,
                                               .num_clusters = kClusters,
                                               .assignment = assignment_.as<const int32_t>(),
                                               .sizes = sizes_.as<const int32_t>(),
                                               .centroids = centroids_.as<const float>(),
                                               .value_sums = value_sums_.as<const float>(),
                                               .radii = radii_.as<const float>(),
                                               .layer = kLayerOfExtent,
                                               .geometry = geometry_,
                                               .extent = extent_,
                                               .next_page = next_page_.as<uint32_t>().device_data(),
                                               .pool = {pool_bytes_.bytes(), geometry_},
                                               .meta_blocks = meta_blocks_.as<const MetaBlockId>(),
                                               .scratch = write_scratch_.bytes()}));
  }
  void Load() {
    Must(ops_->index().LoadSegmentIndex(*stream_,
                                        {.extent = extent_,
                                         .num_tokens = kTokens,
                                         .layer = kLayerOfExtent,
                                         .pool = {pool_bytes_.bytes(), geometry_},
                                         .meta_blocks = meta_blocks_.as<const MetaBlockId>()}));
  }
  void Read() {
    LayerKv out = Kv(0);
    out.keys = out_.bytes().device_data();
    out.values = out.keys + kHeads * kHeadBytes;
    Must(ops_->index().ReadSegmentLayer(*stream_, {.extent = extent_,
                                                   .geometry = geometry_,
                                                   .num_tokens = kTokens,
                                                   .layer = kLayerOfExtent,
                                                   .out = out}));
  }

  // Median milliseconds of one call; the first calls are not counted.
  double Milliseconds(const std::function<void(uint32_t layer)>& enqueue) {
    cudaEvent_t begin, end;
    Must(cudaEventCreate(&begin));
    Must(cudaEventCreate(&end));
    std::vector<float> times;
    const int runs = bench::IsSmoke() ? 3 : 41;
    for (int i = -2; i < runs; ++i) {
      Must(cudaEventRecord(begin, stream()));
      enqueue(static_cast<uint32_t>(i + 2) % kLayers);
      Must(cudaEventRecord(end, stream()));
      Must(cudaEventSynchronize(end));
      float milliseconds = 0;
      Must(cudaEventElapsedTime(&milliseconds, begin, end));
      if (i >= 0) times.push_back(milliseconds);
    }
    Must(cudaEventDestroy(begin));
    Must(cudaEventDestroy(end));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  // GB/s of a plain copy of as many bytes as a layer's KV has.
  double Copy(cudaMemcpyKind kind) {
    constexpr size_t kBytes = 2 * kHeads * kHeadBytes;
    std::byte* const device = out_.bytes().device_data();
    std::byte* const host = host_.bytes().data();
    const bool to_host = kind == cudaMemcpyDeviceToHost;
    const double ms = Milliseconds([&](uint32_t) {
      Must(cudaMemcpyAsync(to_host ? host : device, to_host ? device : host, kBytes, kind,
                           stream()));
    });
    return static_cast<double>(kBytes) / ms / 1e6;
  }

  void Report(const char* name, double ms, double bytes, double limit) {
    const double rate = bytes / ms / 1e6;
    std::printf("%-26s %9.3f %7.1f GB/s %11.0f ms   %.2f of a plain copy\n", name, ms, rate,
                ms * kOfPrompt, rate / limit);
  }

  bool GivesTheSameBytes() {
    std::vector<std::byte> first(host_.size_bytes());
    for (const bool second : {false, true}) {
      std::memset(host_.bytes().data(), 0, host_.size_bytes());
      ResetPages();
      Cluster(1, true);
      Write(1);
      Must(stream_->Synchronize());
      if (second) return std::memcmp(first.data(), host_.bytes().data(), first.size()) == 0;
      std::memcpy(first.data(), host_.bytes().data(), first.size());
    }
    return false;
  }

  const KvGeometry geometry_{
      .num_layers = 1, .num_kv_heads = kHeads, .head_dim = kDim, .format = kBf16Kv};
  const SegmentLayout layout_{geometry_, kTokens};
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<CudaOps> ops_;
  std::unique_ptr<Stream> stream_;
  std::vector<DeviceBuffer> keys_;
  std::vector<DeviceBuffer> values_;
  DeviceBuffer out_;
  DeviceBuffer assignment_;
  DeviceBuffer sizes_;
  DeviceBuffer centroids_;
  DeviceBuffer value_sums_;
  DeviceBuffer radii_;
  DeviceBuffer cluster_scratch_;
  DeviceBuffer write_scratch_;
  DeviceBuffer pool_bytes_;
  DeviceBuffer meta_blocks_;
  DeviceBuffer next_page_;
  HostBuffer host_;
  DeviceSpan<std::byte> extent_;  // host_, as the device sees it
};

}  // namespace
}  // namespace retroinfer

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU, nothing measured\n");
    return 0;
  }
  return retroinfer::Bench().Run();
}
