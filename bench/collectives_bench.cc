// Sums and gathers of the ranks of a model, each a process as in a server, with a GPU or a core of
// its own; sums with the norm behind them, as one operation and as two. Of each size of sums the
// result is checked once on all ranks; then calls follow each other, on a GPU as recorded work.
// Prints JSON: the median of a call over rounds, as rank 0 sees it.
//
// usage: collectives_bench [--device cpu|cuda] [--ranks N] [--memory auto|host]
// --memory host: GPUs meet in the host's memory, as those do that cannot reach each other's.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/support/measure.h"
#include "bench/support/must.h"
#include "bench/support/rank_processes.h"
#include "common/status/status_macros.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/ops/backend/cpu/cpu_ops.h"
#include "gpu_worker/ops/collective/rank_memory.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"

#if RETROINFER_CUDA
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/ops/backend/cuda/cuda_ops.h"
#endif

namespace retroinfer {
namespace {

using bench::Must;
using nlohmann::json;
using test_support::Backend;
using test_support::DeviceData;

constexpr int64_t kCols = 4096;     // of the residual stream of an 8B: 8 KiB a row
constexpr int64_t kVocab = 128256;  // of Llama 3
constexpr double kMicrosecond = 1e-6;

struct Options {
  std::string device = "cpu";
  int ranks = 2;
  std::string memory = "auto";  // cuda::PeerMemory
};

Backend CreateBackend(const Options& options, int rank, RankMemory& ranks) {
  Backend backend;
  if (options.device == "cpu") {
    auto device = std::make_unique<CpuDevice>(CpuDeviceOptions{.num_threads = 1});
    backend.ops = std::make_unique<CpuOps>(*device, ComputePrecision::kBf16, &ranks);
    backend.device = std::move(device);
  } else {
#if RETROINFER_CUDA
    auto device = Must(CudaDevice::Create({.ordinal = rank, .memory_utilization = 0.2}));
    backend.ops = Must(CudaOps::Create(
        *device, &ranks,
        options.memory == "host" ? cuda::PeerMemory::kHost : cuda::PeerMemory::kAuto));
    backend.device = std::move(device);
#else
    bench::Fail("this program was built without CUDA; rank " + std::to_string(rank));
#endif
  }
  backend.stream = Must(backend.device->CreateStream(StreamKind::kCompute));
  return backend;
}

// What one rank does; all do the same.
class Rank {
 public:
  Rank(const Options& options, RankMemory& ranks)
      : options_(options),
        ranks_(ranks),
        backend_(CreateBackend(options, ranks.parallel().rank, ranks)),
        data_(backend_) {}

  json Measure() {
    json report = bench::Report("collectives_bench", backend_.device->info());
    report["ranks"] = options_.ranks;
    report["memory"] = options_.memory;
    const std::vector<int64_t> rows =
        bench::IsSmoke() ? std::vector<int64_t>{1, 40}
                         : std::vector<int64_t>{1, 2, 4, 8, 16, 32, 64, 128, 512, 1024, 4096};
    for (const int64_t count : rows) report["sums"].push_back(Sum(count));
    for (const int64_t count : {1, 2, 8, 20, 32, 64}) {
      if (count > 2 && bench::IsSmoke()) continue;
      json norms = NormOfSum(count, true);
      norms["apart_microseconds"] = NormOfSum(count, false)["microseconds"];
      report["norms_of_sums"].push_back(norms);
    }
    for (const int64_t count : {1, 8}) report["gathers"].push_back(Gather(count));
    Must(ranks_.Meet());  // nobody's memory goes while others read it
    return report;
  }

 private:
  int rank() const { return ranks_.parallel().rank; }

  // Small whole numbers, whose sum bf16 has exactly.
  static float Element(int64_t row, int64_t col, int rank) {
    return static_cast<float>((row + col) % 7 + rank);
  }
  std::vector<float> Drawn(int64_t rows) const {
    std::vector<float> values;
    for (int64_t i = 0; i < rows * kCols; ++i) {
      values.push_back(Element(i / kCols, i % kCols, rank()));
    }
    return values;
  }

  json Sum(int64_t rows) {
    const DeviceData::Matrix in = data_.UploadMatrix(Drawn(rows), rows, kCols, DType::kBf16);
    const DeviceData::Matrix out =
        data_.UploadMatrix(std::vector<float>(rows * kCols), rows, kCols, DType::kBf16);
    const auto sum = [&] {
      return backend_.ops->collective().AllReduce(*backend_.stream,
                                                  {.in = in.view, .out = out.view});
    };
    Must(sum());
    const std::vector<float> got = data_.Values(out);
    for (int64_t i = 0; i < rows * kCols; ++i) {
      float want = 0;
      for (int of = 0; of < options_.ranks; ++of) want += Element(i / kCols, i % kCols, of);
      if (got[static_cast<size_t>(i)] != want) {
        bench::Fail("the sum is " + std::to_string(got[static_cast<size_t>(i)]) + " where it is " +
                    std::to_string(want));
      }
    }
    return Timed(static_cast<double>(rows * kCols) * 2, sum);
  }

  // The end of a half of a layer. Checked by the operation's own suite, as what follows is.
  json NormOfSum(int64_t rows, bool as_one) {
    const DeviceData::Matrix part = data_.Activations(Drawn(rows), rows, kCols);
    const DeviceData::Matrix hidden = data_.Activations(Drawn(rows), rows, kCols);
    const DeviceData::Matrix weight = data_.UploadMatrix(Drawn(1), 1, kCols, DType::kBf16);
    const AllReduceArgs sum = {.in = part.view, .out = hidden.view, .accumulate = true};
    const RmsNormArgs norm = {
        .in = hidden.view, .weight = weight.view, .epsilon = 1e-5f, .out = part.view};
    return Timed(static_cast<double>(rows * kCols) * 2, [&]() -> absl::Status {
      Ops& ops = *backend_.ops;
      if (as_one) {
        return ops.collective().NormOfSum(*backend_.stream, {.sum = sum, .norms = {&norm, 1}});
      }
      RETURN_IF_ERROR(ops.collective().AllReduce(*backend_.stream, sum));
      return ops.model().RmsNorm(*backend_.stream, norm);
    });
  }

  json Gather(int64_t rows) {
    const Share share = ShareOf(ranks_.parallel(), kVocab, 16);
    const DeviceData::Matrix out =
        data_.UploadMatrix(std::vector<float>(rows * kVocab), rows, kVocab, DType::kF32);
    return Timed(static_cast<double>(rows * kVocab) * 4, [&] {
      return backend_.ops->collective().AllGather(
          *backend_.stream,
          {.in = out.view.Columns(share.first, share.count), .out = out.view, .unit = 16});
    });
  }

  template <typename Call>
  json Timed(double bytes, const Call& call) {
    const bool records = options_.device == "cuda";
    const int calls = bench::IsSmoke() ? 2 : bytes < 1 << 20 ? 100 : 20;
    const auto all = [&] {
      for (int i = 0; i < calls; ++i) RETURN_IF_ERROR(call());
      return absl::OkStatus();
    };
    std::unique_ptr<Graph> graph;
    if (records) graph = Must(backend_.device->Capture(*backend_.stream, all));
    bench::Samples samples;
    for (int round = 0; round < (bench::IsSmoke() ? 2 : 30); ++round) {
      Must(ranks_.Meet());  // nobody begins late
      samples.Time([&] {
        Must(records ? backend_.device->Launch(*backend_.stream, *graph) : all());
        Must(backend_.stream->Synchronize());
      });
    }
    const double seconds = samples.timing().median / calls;
    return {{"bytes", bytes},
            {"microseconds", seconds / kMicrosecond},
            {"gigabytes_per_second", bytes / seconds / 1e9}};
  }

  const Options& options_;
  RankMemory& ranks_;
  Backend backend_;
  DeviceData data_;
};

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Sums and gathers of the ranks of a model");
  app.add_option("--device", options.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--ranks", options.ranks)->check(CLI::Range(2, 8));
  app.add_option("--memory", options.memory)->check(CLI::IsMember({"auto", "host"}));
  CLI11_PARSE(app, argc, argv);

  return bench::RunRankProcesses(options.ranks, [&options](RankMemory& ranks) {
    const json report = Rank(options, ranks).Measure();
    if (ranks.parallel().rank == 0) bench::Print(report);
  });
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) { return retroinfer::Main(argc, argv); }
