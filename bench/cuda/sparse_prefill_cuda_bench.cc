// Sparse prefill of the CUDA backend, in one layer of an 8B model (32 query heads, 8 KV heads,
// head_dim 128): time of exact attention, of the choice of blocks, and of attention to blocks that
// are given, over a prompt in passes of --rows rows.
//
// The blocks are drawn (bench/support/drawn_blocks.h). The choice is timed on random keys; its time
// does not depend on them. Rows before token 4096 attend to all keys. Long prompts are measured at
// --passes passes, spread evenly, for which the others count.
//
// usage: sparse_prefill_cuda_bench [--rows 1024] [--passes 24] [--density 0.25] [tokens ...]
// Default: 16384 117760. Compares some rows with the plain kernel's first, and exits with 1 if they
// are wrong. Prints JSON.
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/cuda/gpu.h"
#include "bench/support/drawn_blocks.h"
#include "bench/support/measure.h"
#include "gpu_worker/ops/attention/cuda/prefill_attention.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using bench::Check;
using bench::DrawnBlocks;
using bench::Gpu;
using cuda::PrefillKernel;

constexpr int64_t kKvHeads = 8;
constexpr int64_t kQueryHeads = 32;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kQueryCols = kQueryHeads * kHeadDim;

struct Settings {
  int64_t rows = 1024;
  int64_t passes = 24;
  double density = 0.25;
};

// Seconds of a prompt in a layer.
struct Times {
  double exact = 0, choice = 0, chosen = 0;
  double dense_part = 0;  // of `exact`: rows before token 4096
  bench::BlockTotals blocks;

  double sparse() const { return dense_part + choice + chosen; }
};

class Prompt {
 public:
  Prompt(Gpu& gpu, int64_t tokens, const Settings& settings)
      : gpu_(gpu),
        tokens_(tokens),
        settings_(settings),
        keys_(gpu.Random(tokens * kKvHeads * kHeadDim, 3)),
        values_(gpu.Random(tokens * kKvHeads * kHeadDim, 4)),
        queries_(gpu.Random(settings.rows * kQueryCols, 5)),
        out_(gpu.Allocate(static_cast<size_t>(settings.rows * kQueryCols) * 2)),
        scratch_(
            gpu.Allocate(cuda::PrefillAttentionScratchBytes(settings.rows, tokens, kQueryHeads))) {
    auto context = cuda::PrefillAttentionContext::Create(gpu.device());
    RI_CHECK(context.ok());
    context_ = *std::move(context);
    kernel_ = context_->Choose(Args(0, settings.rows));
  }

  // The median of `rounds` of each pass.
  Times Run(int rounds) {
    Times times;
    const int64_t rows = settings_.rows;
    const int64_t dense = kSparsePrefill.dense_before / rows * rows;
    for (int64_t first = 0; first < dense; first += rows) {
      const double seconds = Median(rounds, [&] { RunExact(Args(first, rows)); });
      times.exact += seconds;
      times.dense_part += seconds;
    }
    // Passes of whole units, the first of which begins behind the sink.
    const int64_t all = (tokens_ - dense - int64_t{kSinkTokens}) / rows;
    const int64_t measured = std::min(all, settings_.passes);
    const double weight = static_cast<double>(all) / static_cast<double>(measured);
    std::vector<PrefillAttentionArgs> passes;
    for (int64_t i = 0; i < measured; ++i) {
      const int64_t pass = (2 * i + 1) * all / (2 * measured);
      passes.push_back(Args(int64_t{kSinkTokens} + dense + pass * rows, rows));
      RunPass(passes.back(), rounds, weight, times);
    }
    // One after the other: a choice takes about as long as it takes to launch one.
    times.choice = weight * Median(rounds, [&] {
                     for (const PrefillAttentionArgs& args : passes) {
                       Check(context_->ChooseBlocks(kernel_, gpu_.stream(), args));
                     }
                   });
    return times;
  }

  // Of the last units, against the plain kernel's; relative to its largest element.
  double Error() {
    const int64_t rows = 2 * kQueryUnit;
    const int64_t first =
        int64_t{kSinkTokens} + (tokens_ - int64_t{kSinkTokens}) / rows * rows - rows;
    const PrefillAttentionArgs args = Args(first, rows);
    Put(args, DrawnBlocks(first, 2, kQueryHeads, settings_.density));
    const auto got = Attend(kernel_, args);
    const auto want = Attend(PrefillKernel::kPlain, args);
    return test_support::RelativeError(got, std::vector<double>(want.begin(), want.end()));
  }

 private:
  PrefillAttentionArgs Args(int64_t first, int64_t rows) const {
    const auto matrix = [&](const DeviceBuffer& buffer) {
      return MatrixView{buffer.bytes().device_data(), DType::kBf16, rows, kQueryCols, kQueryCols};
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
            .choice = kSparsePrefill,
            .out = matrix(out_),
            .scratch = scratch_.bytes()};
  }
  void RunExact(const PrefillAttentionArgs& args) {
    Check(context_->Run(kernel_, gpu_.stream(), args));
  }
  template <typename Body>
  double Median(int rounds, const Body& body) {
    body();
    std::vector<double> seconds;
    for (int round = 0; round < rounds; ++round) seconds.push_back(gpu_.Seconds(body));
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }
  void RunPass(const PrefillAttentionArgs& args, int rounds, double weight, Times& times) {
    times.exact += weight * Median(rounds, [&] { RunExact(args); });
    const DrawnBlocks drawn(args.first_token, settings_.rows / kQueryUnit, kQueryHeads,
                            settings_.density);
    Put(args, drawn);
    times.chosen +=
        weight * Median(rounds, [&] { Check(context_->RunChosen(kernel_, gpu_.stream(), args)); });
    times.blocks.Add(drawn.totals());
  }
  // Puts the blocks, and the order that follows from them, where ChooseBlocks would have.
  void Put(const PrefillAttentionArgs& args, const DrawnBlocks& drawn) {
    const int64_t num_units = args.queries.rows / kQueryUnit;
    const cuda::ChoiceLayout layout(num_units, kQueryHeads,
                                    cuda::ChoiceBlocksOf(args.first_token + args.queries.rows));
    const auto upload = [&](size_t at, std::span<const std::byte> bytes) {
      Check(gpu_.device().Upload(gpu_.stream(), bytes, args.scratch.subspan(at, bytes.size())));
    };
    upload(layout.words, std::as_bytes(std::span(drawn.words())));
    upload(layout.counts, std::as_bytes(std::span(drawn.counts())));
    std::byte* const scratch = args.scratch.device_data();
    const cuda::ChoiceLaunch launch = {
        .num_kv_heads = kKvHeads,
        .group = kQueryHeads / kKvHeads,
        .num_units = static_cast<int32_t>(num_units),
        .counts = reinterpret_cast<int32_t*>(scratch + layout.counts),
        .order = reinterpret_cast<int32_t*>(scratch + layout.order)};
    Check(cuda::LaunchOrderTiles(launch, gpu_.stream().get()));
    Check(gpu_.stream().Synchronize());
  }
  std::vector<float> Attend(PrefillKernel kernel, const PrefillAttentionArgs& args) {
    const size_t bytes = static_cast<size_t>(args.out.rows * kQueryCols) * 2;
    Check(cudaMemsetAsync(args.out.data, 0xff, bytes, gpu_.stream().get()));
    Check(context_->RunChosen(kernel, gpu_.stream(), args));
    std::vector<std::byte> host(bytes);
    Check(gpu_.device().Download(gpu_.stream(), DeviceSpan<const std::byte>(args.out.data, bytes),
                                 std::span(host)));
    Check(gpu_.stream().Synchronize());
    return test_support::FromBytes(host, DType::kBf16);
  }

  Gpu& gpu_;
  const int64_t tokens_;
  const Settings settings_;
  DeviceBuffer keys_, values_, queries_, out_, scratch_;
  std::unique_ptr<cuda::PrefillAttentionContext> context_;
  PrefillKernel kernel_ = PrefillKernel::kPlain;
};

bool RunCase(Gpu& gpu, int64_t tokens, const Settings& settings) {
  Prompt prompt(gpu, tokens, settings);
  constexpr double kAllowed = 1.0 / 64;
  const double error = prompt.Error();
  const Times times = prompt.Run(bench::IsSmoke() ? 1 : 3);
  auto report = bench::Report("sparse_prefill_cuda", gpu.device().info());
  report["settings"] = {{"tokens", tokens},
                        {"rows", settings.rows},
                        {"passes", settings.passes},
                        {"density", settings.density}};
  report["error"] = error;
  report["density"] = times.blocks.density();
  report["copied_of_chosen"] = times.blocks.copied_of_chosen();
  report["exact_milliseconds"] = 1e3 * times.exact;
  report["choice_milliseconds"] = 1e3 * times.choice;
  report["chosen_milliseconds"] = 1e3 * times.chosen;
  report["dense_part_milliseconds"] = 1e3 * times.dense_part;
  report["times_faster"] = times.exact / times.sparse();
  const double n = static_cast<double>(tokens);
  const double flops = 2.0 * kQueryCols * n * n;
  report["exact_tflops"] = flops / times.exact / 1e12;
  report["choice_tflops"] = times.choice == 0 ? 0 : flops / 32 / times.choice / 1e12;
  report["chosen_tflops"] =
      times.chosen == 0 ? 0 : flops * times.blocks.density() / times.chosen / 1e12;
  bench::Print(report);
  std::fprintf(stderr, "%7ld tokens: exact %.2f ms; choice %.2f, chosen %.2f, before %.2f ms\n",
               static_cast<long>(tokens), 1e3 * times.exact, 1e3 * times.choice, 1e3 * times.chosen,
               1e3 * times.dense_part);
  if (error > kAllowed) std::fprintf(stderr, "error %g, at most %g allowed\n", error, kAllowed);
  return error <= kAllowed;
}

int Main(int argc, char** argv) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("no GPU\n");
    return 0;
  }
  Settings settings;
  std::vector<int64_t> lengths;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const bool is_option = name.starts_with("--") && i + 1 < argc;
    if (is_option && name == "--rows") {
      settings.rows = std::atoll(argv[++i]) / (2 * kQueryUnit) * (2 * kQueryUnit);
    } else if (is_option && name == "--passes") {
      settings.passes = std::atoll(argv[++i]);
    } else if (is_option && name == "--density") {
      settings.density = std::atof(argv[++i]);
    } else {
      lengths.push_back(std::atoll(argv[i]));
    }
  }
  if (bench::IsSmoke()) {
    lengths = {8192};
    settings.passes = 2;
  } else if (lengths.empty()) {
    lengths = {16'384, 117'760};
  }
  if (settings.rows < 2 * kQueryUnit || settings.rows > kSparsePrefill.dense_before ||
      *std::ranges::min_element(lengths) < 8192) {
    std::fprintf(stderr, "passes have 128 to 4096 rows, prompts at least 8192 tokens\n");
    return 2;
  }
  Gpu gpu;
  bool ok = true;
  for (const int64_t tokens : lengths) ok = RunCase(gpu, tokens, settings) && ok;
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) { return retroinfer::Main(argc, argv); }
