#include "gpu_worker/ops/backend/cpu/cpu_ops.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <vector>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace {

// Calls of operator new by any thread, libraries included.
std::atomic<int64_t> num_allocations = 0;

void* CountedAllocate(size_t bytes, size_t alignment) {
  ++num_allocations;
  void* data = nullptr;
  if (posix_memalign(&data, std::max(alignment, sizeof(void*)), std::max<size_t>(bytes, 1)) != 0) {
    std::abort();
  }
  return data;
}

}  // namespace

void* operator new(size_t bytes) { return CountedAllocate(bytes, alignof(std::max_align_t)); }
void* operator new[](size_t bytes) { return CountedAllocate(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return CountedAllocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return CountedAllocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t, std::align_val_t) noexcept { std::free(data); }

namespace retroinfer {
namespace {

using namespace test_support;

constexpr int64_t kBatch = 20;
constexpr int64_t kHidden = 512;
constexpr int64_t kVocab = 3000;
constexpr KvGeometry kGeometry = {1, 2, 64, kBf16Kv};

// What a decode step of one layer needs.
class Step {
 public:
  explicit Step(Backend& backend)
      : backend_(backend),
        data_(backend),
        table_(
            data_.UploadMatrix(RandomNormal(kVocab * kHidden, 1), kVocab, kHidden, DType::kBf16)),
        norm_(data_.UploadMatrix(RandomNormal(kHidden, 2), 1, kHidden, DType::kBf16)),
        x_(data_.Poisoned(kBatch, kHidden)),
        y_(data_.Poisoned(kBatch, kHidden)),
        kv_(data_.Activations(RandomNormal(kBatch * 128, 3), kBatch, 128)),
        logits_(data_.UploadMatrix(RandomNormal(kBatch * kVocab, 4), kBatch, kVocab, DType::kF32)),
        ints_(data_.Upload(std::vector<int32_t>(kBatch * kMaxTopLogprobs, 1))),
        floats_(data_.Upload(std::vector<float>(kBatch * kMaxTopLogprobs))),
        cos_(data_.Allocate(kBatch * 32 * sizeof(float))),
        sin_(data_.Allocate(kBatch * 32 * sizeof(float))),
        freq_(data_.Upload(std::vector<float>(32, 0.5f))),
        pool_(data_.Upload(std::vector<std::byte>(20 * DensePoolView::BlockBytes(kGeometry)))),
        block_ids_(data_.Upload(std::vector<DenseBlockId>(20, 1))),
        zones_(data_.Upload(std::vector<DenseZone>(
            kBatch, {block_ids_.as<const DenseBlockId>().device_data(), 4, 1100}))),
        rows_(data_.Upload(std::vector<SamplingRow>(kBatch, {.top_p = 0.9f, .seed = 3}))),
        scratch_(data_.Allocate(
            backend.ops->attention().DecodeAttentionScratchBytes(kBatch, kHidden / 64, 64))),
        sampling_scratch_(data_.Allocate(SamplingScratchBytes(kBatch, logits_.view.cols))) {
    linear_ = *backend.ops->model().PrepareLinear(
        {.weight = test_support::AsWeights(table_.view.Rows(0, kHidden)), .bias = std::nullopt});
  }

  absl::Status Embedding() {
    return ops().model().Embedding(stream(), {.token_ids = ints_.as<const int32_t>().first(kBatch),
                                              .table = table_.view,
                                              .out = x_.view});
  }
  absl::Status RmsNorm() {
    return ops().model().RmsNorm(
        stream(), {.in = x_.view, .weight = norm_.view, .epsilon = 1e-5f, .out = y_.view});
  }
  absl::Status Linear() {
    return ops().model().Linear(stream(), {.linear = linear_.get(),
                                           .in = y_.view,
                                           .out = x_.view,
                                           .accumulate = true,
                                           .decode = true});
  }
  absl::Status RopeTable() {
    return ops().model().RopeTable(stream(), {.positions = ints_.as<const int32_t>().first(kBatch),
                                              .inv_freq = freq_.as<const float>(),
                                              .cos = cos_.as<float>(),
                                              .sin = sin_.as<float>()});
  }
  absl::Status Rope() {
    return ops().model().Rope(stream(), {.x = kv_.view,
                                         .head_dim = 64,
                                         .cos = cos_.as<const float>(),
                                         .sin = sin_.as<const float>()});
  }
  absl::Status AppendDense() {
    return ops().attention().AppendDense(
        stream(), {.keys = kv_.view,
                   .values = kv_.view,
                   .pool = {pool_.bytes(), kGeometry},
                   .layer = 0,
                   .block_ids = ints_.as<const DenseBlockId>().first(kBatch),
                   .place_in_block = ints_.as<const int32_t>().first(kBatch)});
  }
  absl::Status DecodeAttention() {
    return ops().attention().DecodeAttention(stream(), {.queries = x_.view,
                                                        .pool = {pool_.bytes(), kGeometry},
                                                        .layer = 0,
                                                        .zones = zones_.as<const DenseZone>(),
                                                        .pages = {},
                                                        .num_pages = {},
                                                        .max_pages = 0,
                                                        .estimate = {},
                                                        .scale = 0.125f,
                                                        .out = y_.view,
                                                        .scratch = scratch_.bytes()});
  }
  absl::Status SiluMul() {
    return ops().model().SiluMul(stream(), {.gate = x_.view, .up = y_.view, .out = y_.view});
  }
  absl::Status Sampling() {
    return ops().model().Sampling(stream(),
                                  {.logits = logits_.view,
                                   .rows = rows_.as<const SamplingRow>(),
                                   .biases = {},
                                   .occurrences = {},
                                   .tokens = ints_.as<int32_t>().subspan(kBatch, kBatch),
                                   .logprobs = floats_.as<float>(),
                                   .top_tokens = ints_.as<int32_t>(),
                                   .top_logprobs = floats_.as<float>(),
                                   .ranks = ints_.as<int32_t>().subspan(2 * kBatch, kBatch),
                                   .scratch = sampling_scratch_.bytes()});
  }

 private:
  Ops& ops() { return *backend_.ops; }
  Stream& stream() { return *backend_.stream; }

  Backend& backend_;
  DeviceData data_;
  DeviceData::Matrix table_, norm_, x_, y_, kv_, logits_;
  DeviceBuffer ints_, floats_, cos_, sin_, freq_, pool_, block_ids_, zones_, rows_, scratch_,
      sampling_scratch_;
  std::unique_ptr<PreparedLinear> linear_;
};

class CpuOpsTest : public testing::TestWithParam<BackendParam> {
 protected:
  // Allocations of one call, after calls enough for each thread to have its working memory.
  int64_t Allocations(const std::function<absl::Status()>& call) {
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(call().ok());
    int64_t fewest = INT64_MAX;  // a thread may still meet its first share of the work
    for (int i = 0; i < 5; ++i) {
      const int64_t before = num_allocations;
      EXPECT_TRUE(call().ok());
      fewest = std::min<int64_t>(fewest, num_allocations - before);
    }
    return fewest;
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  Step step_{*backend_};
};

TEST_P(CpuOpsTest, ActivationsAreF32) {
  EXPECT_EQ(backend_->ops->model().activation_dtype(), DType::kF32);
}

TEST_P(CpuOpsTest, OperationsOfADecodeStepAllocateNothing) {
  EXPECT_EQ(Allocations([this] { return step_.Embedding(); }), 0);
  EXPECT_EQ(Allocations([this] { return step_.RmsNorm(); }), 0);
  EXPECT_EQ(Allocations([this] { return step_.RopeTable(); }), 0);
  EXPECT_EQ(Allocations([this] { return step_.Rope(); }), 0);
  EXPECT_EQ(Allocations([this] { return step_.AppendDense(); }), 0);
  EXPECT_EQ(Allocations([this] { return step_.DecodeAttention(); }), 0);
  EXPECT_EQ(Allocations([this] { return step_.SiluMul(); }), 0);
  EXPECT_EQ(Allocations([this] { return step_.Sampling(); }), 0);
}

// oneDNN keeps a hash map of the arguments of each of its calls; nothing else may be allocated. Two
// blocks of rows by two of columns are four calls.
TEST_P(CpuOpsTest, LinearLayersAllocateNoMoreThanOneDnnItselfDoes) {
  constexpr int64_t kCalls = 4;
  constexpr int64_t kOfOneDnn = 16;
  const int64_t count = Allocations([this] { return step_.Linear(); });
  RecordProperty("allocations", static_cast<int>(count));
  EXPECT_LE(count, kCalls * kOfOneDnn);
}

INSTANTIATE_TEST_SUITE_P(Backends, CpuOpsTest, testing::ValuesIn(AvailableBackends()), BackendName);

}  // namespace
}  // namespace retroinfer
