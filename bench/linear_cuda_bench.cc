// Matrix products and sampling on a GPU: the projections of Llama-3-8B for decode batches (time
// against a plain read of as many bytes in the same run) and for a chunk of a prompt, with weights
// in bf16, in 8 and in 4 bits, and the choice of a token from its vocabulary. Medians over launches
// of a CUDA graph that goes through so many copies of a weight that none is found in L2. The suites
// of the operations check the results.
//
// usage: linear_cuda_bench [FORM]     a table; of matrices only those whose form has FORM in its
// name, as int4
#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/support/cuda_machine.h"
#include "bench/support/measure.h"
#include "bench/support/must.h"
#include "gpu_worker/ops/model/int4.h"

namespace retroinfer {
namespace {

constexpr size_t kBytesOfCopies = size_t{600} << 20;  // a dozen times the L2

using bench::Machine;
using bench::Must;

struct Projection {
  const char* name;
  int64_t in;
  int64_t out;
  DType out_dtype = DType::kBf16;
  bool gated = false;  // of decode rows alone
};
constexpr Projection kProjections[] = {
    {"qkv", 4096, 6144},          {"attention out", 4096, 4096},
    {"gate and up", 4096, 28672}, {"gate times up", 4096, 28672, DType::kBf16, true},
    {"down", 14336, 4096},        {"vocabulary", 4096, 128256, DType::kF32}};

// How a weight is kept.
enum class Form {
  kBf16,
  kFp8ByFeature,
  kFp8ByBlock,
  kFp8Products,
  kInt4By128,
  kInt4By32,
  kInt4Act
};
constexpr const char* kFormNames[] = {"bf16",          "fp8 by feature", "fp8 by block",
                                      "fp8 by fp8",    "int4 by 128",    "int4 by 32",
                                      "int4 act order"};
constexpr KeptWeights kKept[] = {KeptWeights::kAsStored, KeptWeights::kFp8,
                                 KeptWeights::kAsStored, KeptWeights::kFp8Products,
                                 KeptWeights::kInt4,     KeptWeights::kAsStored,
                                 KeptWeights::kAsStored};

bool IsInt4Codes(Form form) { return form == Form::kInt4By32 || form == Form::kInt4Act; }
bool IsInt4(Form form) { return form == Form::kInt4By128 || IsInt4Codes(form); }

// Bytes of the numbers or codes that a product reads, scales apart.
size_t BytesOf(Form form, const Projection& projection) {
  const auto elements = static_cast<size_t>(projection.in * projection.out);
  return form == Form::kBf16 ? elements * 2 : IsInt4(form) ? elements / 2 : elements;
}

// Whatever codes; with act order columns are permuted.
LinearWeights Int4WeightsIn(Form form, const Projection& projection, const DeviceBuffer& random) {
  const WeightForm int4 = Int4Weights(form == Form::kInt4By32 ? 32 : 128, true);
  WeightScales scales{.values = {}, .cols_each = int4.group_cols};
  const auto groups = static_cast<size_t>(projection.out * scales.num_cols(projection.in));
  scales.values.assign(groups, 0.01f);
  scales.zeros.assign(groups, 7.0f);
  if (form == Form::kInt4Act) {
    scales.columns.resize(static_cast<size_t>(projection.in));
    std::iota(scales.columns.begin(), scales.columns.end(), 0);
    std::shuffle(scales.columns.begin(), scales.columns.end(), std::mt19937(1));
  }
  return {.weight = WeightView::Dense(random.bytes(), int4, projection.out, projection.in),
          .bias = std::nullopt,
          .scales = std::move(scales),
          .keep = KeptWeights::kAsStored};
}

// Random numbers, or, by block, whatever codes but NaN.
LinearWeights WeightsIn(Form form, const Projection& projection, const DeviceBuffer& random) {
  if (IsInt4Codes(form)) return Int4WeightsIn(form, projection, random);
  const auto view = [&](WeightType type) {
    return WeightView::Dense(random.bytes(), type, projection.out, projection.in);
  };
  if (form != Form::kFp8ByBlock) {
    return {.weight = view(WeightType::kBf16),
            .bias = std::nullopt,
            .scales = {},
            .keep = kKept[static_cast<int>(form)]};
  }
  WeightScales scales{
      .values = {}, .rows_each = WeightScales::kBlock, .cols_each = WeightScales::kBlock};
  scales.values.assign(
      static_cast<size_t>(scales.num_rows(projection.out) * scales.num_cols(projection.in)), 0.01f);
  return {.weight = view(WeightType::kF8E4M3),
          .bias = std::nullopt,
          .scales = std::move(scales),
          .keep = KeptWeights::kAsStored};
}

// Memory for a weight; codes of 8 bits are below 0x40, so none is NaN.
DeviceBuffer RandomWeight(Machine& machine, Form form, const Projection& projection) {
  const auto elements = static_cast<size_t>(projection.in * projection.out);
  if (form != Form::kFp8ByBlock) return machine.Random(elements * 2);
  std::vector<uint8_t> codes(elements);
  std::mt19937 generator(1);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(generator() % 0x40);
  return machine.Upload(codes);
}

void MeasureProjection(Machine& machine, const Projection& projection, Form form) {
  const size_t bytes = BytesOf(form, projection);
  const size_t copies = std::max<size_t>(1, kBytesOfCopies / bytes);
  std::vector<std::unique_ptr<PreparedLinear>> weights;
  {
    const DeviceBuffer random = RandomWeight(machine, form, projection);
    const LinearWeights source = WeightsIn(form, projection, random);
    Must(machine.stream().Synchronize());
    for (size_t i = 0; i < copies; ++i) {
      weights.push_back(Must(machine.ops().model().PrepareLinear(source)));
    }
  }
  for (const int64_t rows : {1, 8, 9, 12, 16, 20, 24, 32, 40, 48, 64, 65, 128, 1024, 2048}) {
    const bool decode = rows <= 128;
    if (!decode && (projection.out_dtype == DType::kF32 || projection.gated)) continue;
    const DeviceBuffer in = machine.Random(static_cast<size_t>(rows * projection.in * 2));
    const DeviceBuffer out = machine.Random(static_cast<size_t>(rows * projection.out) *
                                            DTypeBytes(projection.out_dtype));
    const auto x = MatrixView::Dense(in.bytes(), DType::kBf16, rows, projection.in);
    const auto y = MatrixView::Dense(out.bytes(), projection.out_dtype, rows, projection.out);
    const double us = machine.Microseconds(copies, [&] {
      for (const auto& weight : weights) {
        Must(projection.gated ? machine.ops().model().GatedLinear(
                                    machine.stream(), {.linear = weight.get(),
                                                       .in = x,
                                                       .gate_up = y,
                                                       .out = y.Columns(0, projection.out / 2),
                                                       .decode = decode})
                              : machine.ops().model().Linear(
                                    machine.stream(),
                                    {.linear = weight.get(), .in = x, .out = y, .decode = decode}));
      }
    });
    const double flops = 2.0 * static_cast<double>(rows * projection.in * projection.out);
    std::printf("%-14s %-14s %5lld rows %9.1f us %7.0f GB/s %6.0f TFLOP/s\n", projection.name,
                kFormNames[static_cast<int>(form)], static_cast<long long>(rows), us,
                static_cast<double>(bytes) / us / 1e3, flops / us / 1e6);
    std::fflush(stdout);
  }
}

void MeasureSampling(Machine& machine, const char* name, size_t batch, const SamplingRow& row) {
  constexpr int64_t kVocab = 128256;
  const auto size = batch * static_cast<size_t>(kVocab);
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> values(size);
  for (float& value : values) value = normal(generator);
  const DeviceBuffer logits = machine.Upload(values);
  const DeviceBuffer rows = machine.Upload(std::vector<SamplingRow>(batch, row));
  const DeviceBuffer tokens = machine.Allocate(batch * 4);
  const DeviceBuffer logprobs = machine.Allocate(batch * 4);
  const DeviceBuffer top_tokens = machine.Allocate(batch * kMaxTopLogprobs * 4);
  const DeviceBuffer top_logprobs = machine.Allocate(batch * kMaxTopLogprobs * 4);
  const DeviceBuffer ranks = machine.Allocate(batch * 4);
  const DeviceBuffer scratch =
      machine.Allocate(SamplingScratchBytes(static_cast<int64_t>(batch), kVocab));
  const double us = machine.Microseconds(1, [&] {
    Must(machine.ops().model().Sampling(
        machine.stream(), {.logits = MatrixView::Dense(logits.bytes(), DType::kF32,
                                                       static_cast<int64_t>(batch), kVocab),
                           .rows = rows.as<const SamplingRow>(),
                           .biases = {},
                           .occurrences = {},
                           .tokens = tokens.as<int32_t>(),
                           .logprobs = logprobs.as<float>(),
                           .top_tokens = top_tokens.as<int32_t>(),
                           .top_logprobs = top_logprobs.as<float>(),
                           .ranks = ranks.as<int32_t>(),
                           .scratch = scratch.bytes()}));
  });
  std::printf("sampling %-28s batch %3zu %9.1f us\n", name, batch, us);
}

int Main(const std::string& wanted) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU, nothing measured\n");
    return 0;
  }
  Machine machine;
  std::printf("plain read %24.0f GB/s\n", machine.ReadGigabytesASecond());
  for (const Projection& projection : kProjections) {
    for (const Form form : {Form::kBf16, Form::kFp8ByFeature, Form::kFp8ByBlock, Form::kFp8Products,
                            Form::kInt4By128, Form::kInt4By32, Form::kInt4Act}) {
      if (std::string(kFormNames[static_cast<int>(form)]).find(wanted) == std::string::npos)
        continue;
      if (form == Form::kFp8Products && !machine.multiplies_fp8()) continue;
      const bool stays = projection.out_dtype == DType::kF32;  // of the vocabulary
      if (form == Form::kBf16 || !stays) MeasureProjection(machine, projection, form);
    }
    if (bench::IsSmoke()) break;
  }
  for (const size_t batch : {1, 64}) {
    MeasureSampling(machine, "greedy", batch, {.temperature = 0});
    MeasureSampling(machine, "all", batch, {});
    MeasureSampling(machine, "top-p 0.95", batch, {.top_p = 0.95f});
    MeasureSampling(machine, "top-k 50, top-p 0.9", batch, {.top_k = 50, .top_p = 0.9f});
    MeasureSampling(machine, "greedy with 20 logprobs", batch,
                    {.temperature = 0, .num_top_logprobs = 20});
  }
  return 0;
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) { return retroinfer::Main(argc > 1 ? argv[1] : ""); }
