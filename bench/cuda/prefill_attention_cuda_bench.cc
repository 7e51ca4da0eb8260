// Prefill attention of the CUDA backend, in one layer of an 8B model (32 query heads, 8 KV heads,
// head_dim 128), over the speed of cuBLAS's bf16 product of 8192^3, measured in the same rounds.
// Compares some rows with the plain kernel first, and exits with 1 if they are wrong. Prints JSON.
#include <cublasLt.h>

#include <cmath>
#include <string>
#include <vector>

#include "bench/cuda/gpu.h"
#include "bench/support/measure.h"
#include "common/log/check.h"
#include "gpu_worker/ops/attention/cuda/prefill_attention.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using cuda::PrefillKernel;

constexpr int64_t kKvHeads = 8;
constexpr int64_t kQueryHeads = 32;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kQueryCols = kQueryHeads * kHeadDim;
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

using bench::Check;
using bench::Gpu;

void Check(cublasStatus_t status) { RI_CHECK(status == CUBLAS_STATUS_SUCCESS); }

// A square product of bf16 matrices by cuBLAS, with the algorithm that it proposes first.
class CublasProduct {
 public:
  CublasProduct(Gpu& gpu, int64_t side)
      : gpu_(gpu),
        side_(side),
        a_(gpu.Random(side * side, 1)),
        b_(gpu.Random(side * side, 2)),
        c_(gpu.Allocate(static_cast<size_t>(side * side) * 2)),
        workspace_(gpu.Allocate(kWorkspaceBytes)) {
    Check(cublasLtCreate(&handle_));
    Check(cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transpose = CUBLAS_OP_T;
    Check(cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                         sizeof(transpose)));
    const auto rows = static_cast<uint64_t>(side);
    Check(cublasLtMatrixLayoutCreate(&layout_, CUDA_R_16BF, rows, rows, side));
    cublasLtMatmulPreference_t preference;
    Check(cublasLtMatmulPreferenceCreate(&preference));
    Check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &kWorkspaceBytes, sizeof(kWorkspaceBytes)));
    int found = 0;
    Check(cublasLtMatmulAlgoGetHeuristic(handle_, product_, layout_, layout_, layout_, layout_,
                                         preference, 1, &algorithm_, &found));
    RI_CHECK(found == 1);
    Check(cublasLtMatmulPreferenceDestroy(preference));
  }
  ~CublasProduct() {
    (void)cublasLtMatrixLayoutDestroy(layout_);
    (void)cublasLtMatmulDescDestroy(product_);
    (void)cublasLtDestroy(handle_);
  }

  void Run() {
    const float one = 1, zero = 0;
    Check(cublasLtMatmul(handle_, product_, &one, a_.bytes().device_data(), layout_,
                         b_.bytes().device_data(), layout_, &zero, c_.bytes().device_data(),
                         layout_, c_.bytes().device_data(), layout_, &algorithm_.algo,
                         workspace_.bytes().device_data(), kWorkspaceBytes, gpu_.stream().get()));
  }
  double flops() const { return 2.0 * std::pow(static_cast<double>(side_), 3); }

 private:
  Gpu& gpu_;
  int64_t side_;
  DeviceBuffer a_, b_, c_, workspace_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t layout_ = nullptr;
  cublasLtMatmulHeuristicResult_t algorithm_ = {};
};

// One layer's attention over a prompt that comes in chunks.
class Prompt {
 public:
  Prompt(Gpu& gpu, int64_t tokens, int64_t chunk)
      : gpu_(gpu),
        tokens_(tokens),
        chunk_(chunk),
        keys_(gpu.Random(tokens * kKvHeads * kHeadDim, 3)),
        values_(gpu.Random(tokens * kKvHeads * kHeadDim, 4)),
        queries_(gpu.Random(tokens * kQueryCols, 5)),
        out_(gpu.Allocate(static_cast<size_t>(tokens * kQueryCols) * 2)) {
    auto context = cuda::PrefillAttentionContext::Create(gpu.device());
    RI_CHECK(context.ok());
    context_ = *std::move(context);
  }

  PrefillKernel fastest() const { return context_->Choose(Args(0, chunk_)); }
  void Run(PrefillKernel kernel) {
    for (int64_t first = 0; first < tokens_; first += chunk_) {
      Check(context_->Run(kernel, gpu_.stream(), Args(first, std::min(chunk_, tokens_ - first))));
    }
  }
  double flops() const {
    const auto n = static_cast<double>(tokens_);
    return 4.0 * kHeadDim * kQueryHeads * n * (n + 1) / 2;
  }
  // Of the last rows, against the plain kernel's; relative to its largest element.
  double Error(PrefillKernel kernel) {
    const int64_t rows = std::min<int64_t>(32, tokens_);
    const auto got = LastRows(kernel, rows);
    const auto want = LastRows(PrefillKernel::kPlain, rows);
    return test_support::RelativeError(got, std::vector<double>(want.begin(), want.end()));
  }

 private:
  PrefillAttentionArgs Args(int64_t first, int64_t rows) const {
    const auto matrix = [&](const DeviceBuffer& buffer) {
      return MatrixView{buffer.bytes().device_data(), DType::kBf16, tokens_, kQueryCols, kQueryCols}
          .Rows(first, rows);
    };
    return {.queries = matrix(queries_),
            .kv = {.keys = keys_.bytes().device_data(),
                   .values = values_.bytes().device_data(),
                   .num_kv_heads = kKvHeads,
                   .head_dim = kHeadDim,
                   .capacity = tokens_,
                   .dtype = DType::kBf16},
            .first_token = first,
            .scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim)),
            .out = matrix(out_)};
  }
  std::vector<float> LastRows(PrefillKernel kernel, int64_t rows) {
    const size_t bytes = static_cast<size_t>(rows * kQueryCols) * 2;
    const auto last = out_.bytes().subspan(out_.bytes().size() - bytes, bytes);
    Check(cudaMemsetAsync(last.device_data(), 0xff, bytes, gpu_.stream().get()));
    Check(context_->Run(kernel, gpu_.stream(), Args(tokens_ - rows, rows)));
    std::vector<std::byte> host(bytes);
    Check(gpu_.device().Download(
        gpu_.stream(), DeviceSpan<const std::byte>(last.device_data(), bytes), std::span(host)));
    Check(gpu_.stream().Synchronize());
    return test_support::FromBytes(host, DType::kBf16);
  }

  Gpu& gpu_;
  int64_t tokens_;
  int64_t chunk_;
  DeviceBuffer keys_, values_, queries_, out_;
  std::unique_ptr<cuda::PrefillAttentionContext> context_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

bool RunCase(Gpu& gpu, CublasProduct& product, int64_t tokens, int64_t chunk) {
  Prompt prompt(gpu, tokens, chunk);
  const double allowed = 1.0 / 64;
  bool ok = true;
  for (const auto& [kernel, name] :
       {std::pair{PrefillKernel::kHopper, "hopper"}, std::pair{PrefillKernel::kWarp, "warp"}}) {
    if (kernel > prompt.fastest()) continue;
    const double error = prompt.Error(kernel);
    ok = ok && error <= allowed;
    std::vector<double> attention, reference;
    for (int round = 0; round < (bench::IsSmoke() ? 2 : 6); ++round) {
      const double product_seconds = gpu.Seconds([&] { product.Run(); });
      const double seconds = gpu.Seconds([&] { prompt.Run(kernel); });
      if (round == 0) continue;  // warms up
      reference.push_back(product_seconds);
      attention.push_back(seconds);
    }
    const double speed = prompt.flops() / Median(attention);
    const double reference_speed = product.flops() / Median(reference);
    auto report = bench::Report("prefill_attention_cuda", gpu.device().info());
    report["settings"] = {{"kernel", name}, {"tokens", tokens}, {"chunk", chunk}};
    report["error"] = error;
    report["milliseconds"] = Median(attention) * 1e3;
    report["attention_tflops"] = speed / 1e12;
    report["cublas_tflops"] = reference_speed / 1e12;
    report["ratio"] = speed / reference_speed;
    bench::Print(report);
    std::fprintf(stderr,
                 "%-7s %7ld tokens, chunks of %6ld: %9.3f ms, %6.1f TFLOP/s, cuBLAS %6.1f\n", name,
                 static_cast<long>(tokens), static_cast<long>(chunk), Median(attention) * 1e3,
                 speed / 1e12, reference_speed / 1e12);
    if (error > allowed) std::fprintf(stderr, "error %g, at most %g allowed\n", error, allowed);
  }
  return ok;
}

}  // namespace
}  // namespace retroinfer

int main() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("no GPU\n");
    return 0;
  }
  const bool smoke = retroinfer::bench::IsSmoke();
  retroinfer::Gpu gpu;
  retroinfer::CublasProduct product(gpu, smoke ? 1024 : 8192);
  bool ok = true;
  for (const int64_t tokens : {8'192, 32'768, 122'880}) {
    if (smoke && tokens > 8'192) break;
    // As the engine cuts prompts, in larger chunks, and whole.
    for (const int64_t chunk : {int64_t{1024}, int64_t{4096}, tokens}) {
      ok = retroinfer::RunCase(gpu, product, tokens, chunk) && ok;
    }
  }
  return ok ? 0 : 1;
}
