// Dense decode attention of the CPU backend over a plain read of the same bytes by as many threads,
// measured in the same rounds. Checks the result against doubles first, and exits with 1 if it is
// wrong. Prints JSON.
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/support/measure.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/cpu/thread_pool.h"
#include "gpu_worker/ops/backend/cpu/cpu_ops.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

constexpr uint32_t kKvHeads = 2;

struct Settings {
  int64_t tokens;
  int64_t group;
  uint32_t head_dim;
  DType dtype;
};

// One sequence in dense blocks of one layer.
class Decode {
 public:
  Decode(Backend& backend, const Settings& settings)
      : settings_(settings),
        backend_(backend),
        data_(backend),
        geometry_{1, kKvHeads, settings.head_dim,
                  settings.dtype == DType::kF32 ? kF32Kv : kBf16Kv} {
    const int64_t window = settings.tokens - kSinkTokens;
    const int64_t num_blocks = 1 + (window + kDenseBlockTokens - 1) / kDenseBlockTokens;
    pool_ = data_.Allocate(static_cast<size_t>(num_blocks) * DensePoolView::BlockBytes(geometry_));
    FillPool();
    std::vector<DenseBlockId> ids(static_cast<size_t>(num_blocks));
    std::iota(ids.begin(), ids.end(), 0);
    blocks_ = data_.Upload(ids);
    zones_ = data_.Upload(std::vector<DenseZone>{{blocks_.as<const DenseBlockId>().device_data(),
                                                  kSinkTokens, static_cast<int32_t>(window)}});
    const int64_t heads = kKvHeads * settings.group;
    queries_ = RandomNormal(static_cast<size_t>(heads) * settings.head_dim, 3);
    q_ = data_.Activations(queries_, 1, heads * settings.head_dim);
    out_ = data_.Poisoned(1, heads * settings.head_dim);
    scratch_ = data_.Allocate(backend.ops->attention().DecodeAttentionScratchBytes(
        1, static_cast<int32_t>(heads), static_cast<int32_t>(settings.head_dim)));
  }

  void Run() {
    const absl::Status status = backend_.ops->attention().DecodeAttention(
        *backend_.stream, {.queries = q_.view,
                           .pool = {pool_.bytes(), geometry_},
                           .layer = 0,
                           .zones = zones_.as<const DenseZone>(),
                           .pages = {},
                           .num_pages = {},
                           .max_pages = 0,
                           .estimate = {},
                           .scale = 1.0f / std::sqrt(static_cast<float>(settings_.head_dim)),
                           .out = out_.view,
                           .scratch = scratch_.bytes()});
    RI_CHECK(status.ok());
  }

  double Error() {
    const std::vector<float> got = data_.Values(out_);
    const std::vector<double> want = Reference();
    return RelativeError(std::span(got).first(want.size()), want);
  }
  double bytes() const {
    return static_cast<double>(settings_.tokens) * static_cast<double>(geometry_.token_bytes());
  }
  DeviceSpan<const std::byte> pool() const { return pool_.bytes(); }

 private:
  // Normal values from a table: drawing each would take longer than the benchmark.
  void FillPool() {
    const std::vector<std::byte> table = ToBytes(RandomNormal(1 << 16, 1), settings_.dtype);
    std::mt19937_64 random(2);
    std::byte* bytes = pool_.bytes().device_data();
    for (size_t i = 0; i + kPageBytes <= pool_.size_bytes(); i += kPageBytes) {
      const size_t offset = random() % (table.size() / kPageBytes) * kPageBytes;
      std::memcpy(bytes + i, table.data() + offset, kPageBytes);
    }
  }
  std::vector<double> Reference() const {  // of query head 0
    const size_t dim = settings_.head_dim, per_page = geometry_.tokens_per_page();
    std::vector<double> acc(dim);
    double sum = 0;
    const DensePoolView view = {pool_.bytes(), geometry_};
    for (int64_t t = 0; t < settings_.tokens; ++t) {
      const bool sink = t < kSinkTokens;
      const int64_t block = sink ? 0 : 1 + (t - kSinkTokens) / kDenseBlockTokens;
      const auto place = static_cast<size_t>(sink ? t : (t - kSinkTokens) % kDenseBlockTokens);
      const std::byte* page =
          view.Run(static_cast<DenseBlockId>(block), 0, 0) + place / per_page * kPageBytes;
      const auto elements = FromBytes({page, kPageBytes}, settings_.dtype);
      const float* key = elements.data() + place % per_page * dim;
      double score = 0;
      for (size_t i = 0; i < dim; ++i) score += double{queries_[i]} * key[i];
      const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
      sum += weight;
      for (size_t i = 0; i < dim; ++i) acc[i] += weight * key[per_page * dim + i];
    }
    for (double& value : acc) value /= sum;
    return acc;
  }

  const Settings settings_;
  Backend& backend_;
  DeviceData data_;
  const KvGeometry geometry_;
  DeviceBuffer pool_, blocks_, zones_, scratch_;
  std::vector<float> queries_;
  DeviceData::Matrix q_, out_;
};

// Reads every cache line of `bytes`; returns something that depends on all of them.
uint64_t ReadAll(ThreadPool& pool, DeviceSpan<const std::byte> bytes) {
  constexpr size_t kPart = size_t{1} << 20;
  std::atomic<uint64_t> total = 0;
  const size_t parts = (bytes.size() + kPart - 1) / kPart;
  pool.ParallelFor(static_cast<int64_t>(parts), [&](int64_t part) {
    const size_t begin = static_cast<size_t>(part) * kPart;
    const auto* words = reinterpret_cast<const uint64_t*>(bytes.device_data() + begin);
    const size_t count = std::min(kPart, bytes.size() - begin) / sizeof(uint64_t);
    uint64_t sums[8] = {};
    for (size_t i = 0; i + 8 <= count; i += 8) {
      for (size_t j = 0; j < 8; ++j) sums[j] += words[i + j];
    }
    for (const uint64_t sum : sums) total += sum;
  });
  return total;
}

Backend CreateBackend() {
  Backend backend;
  auto device = std::make_unique<CpuDevice>(CpuDeviceOptions{.num_threads = bench::NumThreads()});
  backend.ops = std::make_unique<CpuOps>(*device, ComputePrecision::kBf16);
  backend.device = std::move(device);
  backend.stream = *backend.device->CreateStream(StreamKind::kCompute);
  return backend;
}

bool RunCase(const Settings& settings) {
  Backend backend = CreateBackend();
  Decode decode(backend, settings);
  decode.Run();
  const double error = decode.Error();
  ThreadPool pool(backend.device->info().num_processors);
  bench::Samples decode_samples, read_samples;
  uint64_t sum = 0;
  for (int round = 0; round < (bench::IsSmoke() ? 2 : 15); ++round) {
    read_samples.Time([&] { sum += ReadAll(pool, decode.pool()); });
    decode_samples.Time([&] { decode.Run(); });
  }
  const double speed = decode.bytes() / decode_samples.timing().median;
  const double read_speed =
      static_cast<double>(decode.pool().size()) / read_samples.timing().median;
  auto report = bench::Report("decode_attention", backend.device->info());
  report["settings"] = {{"kv_dtype", std::string(DTypeName(settings.dtype))},
                        {"tokens", settings.tokens},
                        {"query_heads", kKvHeads * settings.group},
                        {"kv_heads", kKvHeads},
                        {"head_dim", settings.head_dim}};
  report["error"] = error;
  report["attention"] = bench::ToJson(decode_samples.timing());
  report["read"] = bench::ToJson(read_samples.timing());
  report["read_checksum"] = sum;
  report["attention_gb_per_second"] = speed / 1e9;
  report["read_gb_per_second"] = read_speed / 1e9;
  report["ratio_to_read"] = speed / read_speed;
  bench::Print(report);
  // Values average out over 131,072 tokens: errors are relative to what is left of them.
  constexpr double kAllowed = 1e-3;
  if (error <= kAllowed) return true;
  std::fprintf(stderr, "decode_attention_bench: error %g, at most %g allowed\n", error, kAllowed);
  return false;
}

}  // namespace
}  // namespace retroinfer

int main() {
  using retroinfer::DType;
  const int64_t tokens = retroinfer::bench::IsSmoke() ? 3000 : 131'072;
  bool ok = true;
  for (const int64_t group : {1, 4, 8}) {
    ok = retroinfer::RunCase({tokens, group, 128, DType::kBf16}) && ok;
  }
  ok = retroinfer::RunCase({tokens, 4, 64, DType::kBf16}) && ok;
  ok = retroinfer::RunCase({tokens, 4, 128, DType::kF32}) && ok;
  return ok ? 0 : 1;
}
