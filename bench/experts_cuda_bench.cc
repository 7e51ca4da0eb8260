// The feed-forward network of experts on a GPU, in the shape of a layer of Qwen3-30B-A3B: the
// choice of experts and the two products, for decode batches (time against a plain read of the
// bytes of the experts that are taken, in the same run) and for prompts, with weights in bf16, 8
// and 4 bits. Medians over launches of a CUDA graph whose steps take other experts, so that few are
// found in L2. The suites of the operations check the results.
//
// usage: experts_cuda_bench [FORM]     a table; of forms only those that have FORM in their name
#include <random>
#include <set>
#include <string>
#include <vector>

#include "bench/support/cuda_machine.h"

namespace retroinfer {
namespace {

using bench::Machine;
using bench::Must;

constexpr int64_t kHidden = 2048;
constexpr int64_t kFeatures = 768;
constexpr int64_t kExperts = 128;
constexpr int64_t kPerRow = 8;

struct Form {
  const char* name;
  KeptWeights keep;
  double bytes;  // of a weight
};
constexpr Form kForms[] = {{"bf16", KeptWeights::kAsStored, 2},
                           {"fp8", KeptWeights::kFp8, 1},
                           {"int4", KeptWeights::kInt4, 0.5 + 4.0 / 128}};

// A step's scores, and which experts its rows take.
struct Step {
  DeviceBuffer scores;
  size_t num_experts = 0;
};

class Layer {
 public:
  Layer(Machine& machine, const Form& form) : machine_(machine), form_(form) {
    gate_up_ = Prepare(2 * kExperts, kFeatures, kHidden);
    down_ = Prepare(kExperts, kHidden, kFeatures);
  }

  void Measure(int64_t rows, double read_gigabytes) {
    const bool decode = rows <= 128;
    const int64_t pairs = rows * kPerRow;
    std::vector<Step> steps;
    for (int i = 0; i < (decode ? 16 : 2); ++i) steps.push_back(NewStep(rows, i));
    const DeviceBuffer in = machine_.Random(static_cast<size_t>(rows * kHidden * 2));
    const DeviceBuffer out = machine_.Random(static_cast<size_t>(rows * kHidden * 2));
    const DeviceBuffer gated = machine_.Allocate(static_cast<size_t>(pairs * kFeatures * 2));
    const DeviceBuffer products = machine_.Allocate(static_cast<size_t>(pairs * kHidden * 2));
    const DeviceBuffer weights = machine_.Allocate(static_cast<size_t>(pairs * 4));
    const DeviceBuffer experts = machine_.Allocate(static_cast<size_t>(pairs * 4));
    const DeviceBuffer plan =
        machine_.Allocate(static_cast<size_t>(RoutePlan::MostWords(kExperts, kPerRow, rows)) * 4);
    const ExpertRoutes routes = {.num_experts = kExperts,
                                 .per_row = kPerRow,
                                 .experts = experts.as<int32_t>(),
                                 .weights = weights.as<float>(),
                                 .plan = plan.as<int32_t>()};
    const auto matrix = [](const DeviceBuffer& buffer, int64_t count, int64_t cols) {
      return MatrixView::Dense(buffer.bytes(), DType::kBf16, count, cols);
    };
    ModelOps& ops = machine_.ops().model();
    // Of each step as many of the three as `last` says.
    const auto run = [&](int last) {
      for (const Step& step : steps) {
        Must(ops.RouteExperts(
            machine_.stream(),
            {.scores = MatrixView::Dense(step.scores.bytes(), DType::kF32, rows, kExperts),
             .weights_sum_to_one = true,
             .decode = decode,
             .routes = routes}));
        if (last >= 1) {
          Must(ops.GroupedGatedLinear(machine_.stream(), {.linear = gate_up_.get(),
                                                          .in = matrix(in, rows, kHidden),
                                                          .routes = routes,
                                                          .out = matrix(gated, pairs, kFeatures),
                                                          .decode = decode}));
        }
        if (last < 2) continue;
        Must(ops.GroupedLinear(machine_.stream(), {.linear = down_.get(),
                                                   .in = matrix(gated, pairs, kFeatures),
                                                   .routes = routes,
                                                   .products = matrix(products, pairs, kHidden),
                                                   .out = matrix(out, rows, kHidden),
                                                   .decode = decode}));
      }
    };
    const double route_us = machine_.Microseconds(steps.size(), [&] { run(0); });
    const double gated_us = machine_.Microseconds(steps.size(), [&] { run(1); }) - route_us;
    const double all_us = machine_.Microseconds(steps.size(), [&] { run(2); });
    double taken = 0;
    for (const Step& step : steps) taken += static_cast<double>(step.num_experts);
    taken /= static_cast<double>(steps.size());
    const double bytes = taken * form_.bytes * 3 * kFeatures * kHidden;
    const double flops = 2.0 * static_cast<double>(pairs * 3 * kFeatures * kHidden);
    const double products_us = all_us - route_us;
    std::printf(
        "%-5s %5lld rows %6.1f experts  route %6.1f  gate and up %7.1f  down %7.1f  all %7.1f us  "
        "%5.0f GB/s, %3.0f %% of a read, %5.0f TFLOP/s\n",
        form_.name, static_cast<long long>(rows), taken, route_us, gated_us, products_us - gated_us,
        all_us, bytes / products_us / 1e3, 100 * bytes / products_us / 1e3 / read_gigabytes,
        flops / products_us / 1e6);
    std::fflush(stdout);
  }

 private:
  std::unique_ptr<PreparedLinear> Prepare(int64_t parts, int64_t features, int64_t in) {
    const int64_t rows = parts * features;
    const DeviceBuffer random = machine_.Random(static_cast<size_t>(rows * in * 2));
    Must(machine_.stream().Synchronize());
    return Must(machine_.ops().model().PrepareLinear(
        {.weight = WeightView::Dense(random.bytes(), WeightType::kBf16, rows, in),
         .bias = std::nullopt,
         .scales = {},
         .keep = form_.keep,
         .num_parts = parts}));
  }

  // Rows take any experts; a single row takes eight that the steps before it have not taken.
  Step NewStep(int64_t rows, int index) {
    std::mt19937 generator(static_cast<unsigned>(index));
    std::normal_distribution<float> normal;
    std::vector<float> scores(static_cast<size_t>(rows * kExperts));
    for (float& score : scores) score = normal(generator);
    if (rows == 1) {
      for (int64_t i = 0; i < kPerRow; ++i) {
        scores[static_cast<size_t>((index * kPerRow + i) % kExperts)] = 10;
      }
    }
    std::set<int64_t> taken;
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<std::pair<float, int64_t>> order;
      for (int64_t expert = 0; expert < kExperts; ++expert) {
        order.push_back({-scores[static_cast<size_t>(row * kExperts + expert)], expert});
      }
      std::partial_sort(order.begin(), order.begin() + kPerRow, order.end());
      for (int64_t i = 0; i < kPerRow; ++i) taken.insert(order[static_cast<size_t>(i)].second);
    }
    return {machine_.Upload(scores), taken.size()};
  }

  Machine& machine_;
  const Form& form_;
  std::unique_ptr<PreparedLinear> gate_up_;
  std::unique_ptr<PreparedLinear> down_;
};

int Main(const std::string& wanted) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU, nothing measured\n");
    return 0;
  }
  Machine machine;
  const double read = machine.ReadGigabytesASecond();
  std::printf("plain read %24.0f GB/s\n", read);
  for (const Form& form : kForms) {
    if (std::string(form.name).find(wanted) == std::string::npos) continue;
    Layer layer(machine, form);
    for (const int64_t rows : {1, 2, 4, 10, 32, 64, 128, 512, 2048}) {
      layer.Measure(rows, read);
      if (bench::IsSmoke()) break;
    }
    if (bench::IsSmoke()) break;
  }
  return 0;
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) { return retroinfer::Main(argc > 1 ? argv[1] : ""); }
