// Prefill attention of the CPU backend over the speed of oneDNN's own matrix product, measured in
// the same rounds: one of the attention's own size (scores of one KV head's queries), and a large
// square one, which is as fast as oneDNN gets. Checks a few rows against doubles first, and exits
// with 1 if they are wrong. Prints JSON.
#include <omp.h>

#include <cmath>
#include <string>
#include <unordered_map>
#include <vector>

#include "bench/support/measure.h"
#include "dnnl.hpp"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/ops/backend/cpu/cpu_ops.h"
#include "gpu_worker/ops/cpu/cpu_features.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"

namespace retroinfer {
namespace {

using namespace test_support;

constexpr uint32_t kKvHeads = 2;
constexpr uint32_t kGroup = 4;
constexpr uint32_t kHeadDim = 128;
constexpr int64_t kQueryHeads = kKvHeads * kGroup;

// out[m, n] = a[m, k] * b[k, n] by oneDNN with its own threads.
class DnnlProduct {
 public:
  DnnlProduct(int64_t m, int64_t n, int64_t k, bool bf16)
      : flops_(2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k)),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_) {
    using dnnl::memory;
    const auto type = bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const memory::desc a({m, k}, type, memory::format_tag::ab);
    const memory::desc b({k, n}, type, memory::format_tag::any);
    const memory::desc out({m, n}, memory::data_type::f32, memory::format_tag::ab);
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc desc(engine_, a, b, out);
#else
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(a, b, out), engine_);
#endif
    product_ = dnnl::matmul(desc);
    for (const auto& [argument, shape] : {std::pair{DNNL_ARG_SRC, desc.src_desc()},
                                          {DNNL_ARG_WEIGHTS, desc.weights_desc()},
                                          {DNNL_ARG_DST, desc.dst_desc()}}) {
      memory data(shape, engine_);
      std::memset(data.get_data_handle(), 0, shape.get_size());
      arguments_.emplace(argument, data);
    }
  }
  void Run() {
    product_.execute(stream_, arguments_);
    stream_.wait();
  }
  double flops() const { return flops_; }

 private:
  double flops_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul product_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

// A prompt whose last `num_queries` tokens attend.
class Attention {
 public:
  Attention(Backend& backend, DType dtype, int64_t tokens, int64_t num_queries)
      : backend_(backend),
        data_(backend),
        kv_(data_, RandomNormal(static_cast<size_t>(tokens) * kKvHeads * kHeadDim, 1),
            RandomNormal(static_cast<size_t>(tokens) * kKvHeads * kHeadDim, 2), kKvHeads, kHeadDim,
            dtype),
        queries_(RandomNormal(static_cast<size_t>(num_queries * kQueryHeads) * kHeadDim, 3)),
        q_(data_.Activations(queries_, num_queries, kQueryHeads * kHeadDim)),
        out_(data_.Poisoned(num_queries, kQueryHeads * kHeadDim)),
        first_token_(tokens - num_queries) {}

  void Run() {
    const absl::Status status = backend_.ops->attention().PrefillAttention(
        *backend_.stream, {.queries = q_.view,
                           .kv = kv_.view(),
                           .first_token = first_token_,
                           .scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim)),
                           .out = out_.view});
    RI_CHECK(status.ok());
  }
  // Causal: each query's products with the keys that it sees, for scores and for values.
  double flops() const {
    const auto n = static_cast<double>(q_.view.rows);
    const double pairs = n * static_cast<double>(first_token_) + n * (n + 1) / 2;
    return 4.0 * kHeadDim * static_cast<double>(kQueryHeads) * pairs;
  }
  // Largest error of some rows, relative to their largest element.
  double Error() {
    const std::vector<float> got = data_.Values(out_);
    double error = 0;
    for (int64_t row = 0; row < q_.view.rows; row += q_.view.rows / 3) {
      const int64_t head = row * 7 % kQueryHeads;
      const auto offset = static_cast<size_t>(row * kQueryHeads + head) * kHeadDim;
      const std::span<const float> part(got.data() + offset, kHeadDim);
      error = std::max(error, RelativeError(part, Reference(row, head, offset)));
    }
    return error;
  }

 private:
  std::vector<double> Reference(int64_t row, int64_t head, size_t offset) const {
    std::vector<double> acc(kHeadDim);
    double sum = 0;
    const auto kv_head = static_cast<uint32_t>(head) / kGroup;
    for (int64_t t = 0; t <= first_token_ + row; ++t) {
      double score = 0;
      for (size_t i = 0; i < kHeadDim; ++i) {
        score += double{queries_[offset + i]} * kv_.Key(kv_head, t)[i];
      }
      const double weight = std::exp(score / std::sqrt(double{kHeadDim}));
      sum += weight;
      for (size_t i = 0; i < kHeadDim; ++i) acc[i] += weight * kv_.Value(kv_head, t)[i];
    }
    for (double& value : acc) value /= sum;
    return acc;
  }

  Backend& backend_;
  DeviceData data_;
  LayerKvImage kv_;
  std::vector<float> queries_;
  DeviceData::Matrix q_;
  DeviceData::Matrix out_;
  int64_t first_token_;
};

Backend CreateBackend(ComputePrecision precision) {
  Backend backend;
  auto device = std::make_unique<CpuDevice>(CpuDeviceOptions{.num_threads = bench::NumThreads()});
  backend.ops = std::make_unique<CpuOps>(*device, precision);
  backend.device = std::move(device);
  backend.stream = *backend.device->CreateStream(StreamKind::kCompute);
  return backend;
}

bool RunCase(ComputePrecision precision, int64_t tokens, int64_t num_queries) {
  Backend backend = CreateBackend(precision);
  const DType dtype = precision == ComputePrecision::kBf16 ? DType::kBf16 : DType::kF32;
  const bool bf16 = dtype == DType::kBf16 && cpu::HasAvx512Bf16();
  omp_set_num_threads(backend.device->info().num_processors);
  Attention attention(backend, dtype, tokens, num_queries);
  attention.Run();
  // Values average out over the keys, so that an error of one rounding shows large beside them.
  const double error = attention.Error();
  const double allowed = bf16 ? 0.03 : 1e-4;
  const int64_t side = bench::IsSmoke() ? 256 : 2048;
  DnnlProduct same_size(num_queries * kGroup, tokens, kHeadDim, bf16);
  DnnlProduct square(side, side, side, bf16);
  bench::Samples attention_samples, same_size_samples, square_samples;
  for (int round = 0; round < (bench::IsSmoke() ? 1 : 5); ++round) {
    same_size.Run();
    same_size_samples.Time([&] { same_size.Run(); });
    square_samples.Time([&] { square.Run(); });
    attention.Run();
    attention_samples.Time([&] { attention.Run(); });
  }
  const double speed = attention.flops() / attention_samples.timing().median;
  const double same_size_speed = same_size.flops() / same_size_samples.timing().median;
  const double square_speed = square.flops() / square_samples.timing().median;
  auto report = bench::Report("prefill_attention", backend.device->info());
  report["settings"] = {{"products", std::string(bf16 ? "bf16" : "f32")},
                        {"kv_dtype", std::string(DTypeName(dtype))},
                        {"tokens", tokens},
                        {"queries", num_queries},
                        {"query_heads", kQueryHeads},
                        {"kv_heads", kKvHeads},
                        {"head_dim", kHeadDim}};
  report["error"] = error;
  report["attention"] = bench::ToJson(attention_samples.timing());
  report["attention_gflops"] = speed / 1e9;
  report["onednn_same_size_gflops"] = same_size_speed / 1e9;
  report["onednn_square_gflops"] = square_speed / 1e9;
  report["onednn_square"] = bench::ToJson(square_samples.timing());
  report["onednn_same_size"] = bench::ToJson(same_size_samples.timing());
  report["ratio_to_same_size"] = speed / same_size_speed;
  report["ratio_to_square"] = speed / square_speed;
  bench::Print(report);
  if (error <= allowed) return true;
  std::fprintf(stderr, "prefill_attention_bench: error %g, at most %g allowed\n", error, allowed);
  return false;
}

}  // namespace
}  // namespace retroinfer

int main() {
  using retroinfer::ComputePrecision;
  const bool smoke = retroinfer::bench::IsSmoke();
  bool ok = true;
  // A whole prompt, and a slice far into one. f32 takes ten times as long, and shows as much.
  ok = retroinfer::RunCase(ComputePrecision::kBf16, smoke ? 600 : 16'384, smoke ? 600 : 16'384);
  ok = retroinfer::RunCase(ComputePrecision::kBf16, smoke ? 900 : 32'768, smoke ? 30 : 512) && ok;
  ok = retroinfer::RunCase(ComputePrecision::kF32, smoke ? 600 : 4'096, smoke ? 600 : 4'096) && ok;
  return ok ? 0 : 1;
}
