// Decode attention on a GPU against a plain read of as many bytes in the same run: dense contexts
// (policy `full`) and the shape of wave attention. Llama-3-8B's heads unless a row says otherwise.
// Each figure is the median over launches of a CUDA graph that goes through the layers of the
// model, so that nothing is found in L2 that a decode step would not find there. Compares the first
// sequence with a plain f32 reference first, in bf16, and exits with 1 if it is wrong; what int8
// reads is any bytes, which decode_attention_test answers for.
//
// usage: decode_attention_cuda_bench [--json] [--shape NAME] [--tokens N]
//   --json     one JSON object a line instead of a table
//   --shape    only shapes of this name ("dense", "dense, int8", "wave, int8" and others)
//   --tokens   only shapes whose longest context has as many tokens
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/decode_attention_kernels.h"
#include "bench/support/measure.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/attention/cuda/decode_attention.h"

namespace retroinfer {
namespace {

constexpr uint32_t kHeadDim = 128;
constexpr size_t kPoolBytes = size_t{56} << 30;
constexpr size_t kSlotBytes = size_t{2} << 30;

struct Shape {
  std::string name;
  std::vector<int32_t> tokens;  // dense, by sequence
  int32_t pages = 0;            // of a sequence's execution buffer, over all KV heads
  uint32_t kv_heads = 8;
  int32_t group = 4;
  KvFormat format = kBf16Kv;
};

void Must(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "decode_attention_cuda_bench: %s\n", cudaGetErrorString(code));
  std::exit(1);
}
template <typename T>
T Must(absl::StatusOr<T> result) {
  RI_CHECK(result.ok());
  return *std::move(result);
}

// The GPU, and memory full of numbers that all shapes share.
class Machine {
 public:
  Machine()
      : device_(Must(CudaDevice::Create({.ordinal = 0, .memory_utilization = 0.9}))),
        stream_owner_(Must(device_->CreateStream(StreamKind::kCompute))),
        pool_(Allocate(kPoolBytes)),
        slots_(Allocate(kSlotBytes)),
        sink_(Allocate(256)) {
    bench::FillBf16(pool_.bytes().device_data(), kPoolBytes, 1, stream());
    bench::FillBf16(slots_.bytes().device_data(), kSlotBytes, 2, stream());
    Must(cudaGetLastError());
  }

  DeviceBuffer Allocate(size_t bytes) {
    return Must(device_->Allocate(std::max<size_t>(bytes, 1), MemoryPurpose::kActivations));
  }
  template <typename T>
  DeviceBuffer Upload(const std::vector<T>& host) {
    DeviceBuffer buffer = Allocate(host.size() * sizeof(T));
    Must(cudaMemcpy(buffer.bytes().device_data(), host.data(), host.size() * sizeof(T),
                    cudaMemcpyHostToDevice));
    return buffer;
  }
  CudaStream& cuda_stream() { return static_cast<CudaStream&>(*stream_owner_); }
  cudaStream_t stream() { return cuda_stream().get(); }
  const DeviceInfo& info() const { return device_->info(); }
  std::byte* pool() const { return pool_.bytes().device_data(); }
  std::byte* slots() const { return slots_.bytes().device_data(); }
  uint32_t* sink() const { return sink_.as<uint32_t>().device_data(); }

  // Microseconds of one of the `count` launches that `enqueue` makes.
  double Microseconds(int count, const std::function<void()>& enqueue) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaEvent_t begin, end;
    Must(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
    enqueue();
    Must(cudaStreamEndCapture(stream(), &graph));
    Must(cudaGraphInstantiate(&executable, graph, 0));
    Must(cudaEventCreate(&begin));
    Must(cudaEventCreate(&end));
    std::vector<float> times;
    const int rounds = bench::IsSmoke() ? 3 : 15;
    for (int i = 0; i < rounds + 2; ++i) {
      Must(cudaEventRecord(begin, stream()));
      Must(cudaGraphLaunch(executable, stream()));
      Must(cudaEventRecord(end, stream()));
      Must(cudaEventSynchronize(end));
      float milliseconds = 0;
      Must(cudaEventElapsedTime(&milliseconds, begin, end));
      if (i >= 2) times.push_back(milliseconds);
    }
    std::sort(times.begin(), times.end());
    Must(cudaEventDestroy(begin));
    Must(cudaEventDestroy(end));
    Must(cudaGraphExecDestroy(executable));
    Must(cudaGraphDestroy(graph));
    return 1000.0 * times[times.size() / 2] / count;
  }

 private:
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Stream> stream_owner_;
  DeviceBuffer pool_, slots_, sink_;
};

class Decode {
 public:
  Decode(Machine& machine, const Shape& shape) : machine_(machine), shape_(shape) {
    const auto batch = static_cast<int32_t>(shape.tokens.size());
    size_t num_blocks = 0;
    for (const int32_t tokens : shape.tokens) num_blocks += NumBlocks(tokens);
    geometry_ = {1, shape.kv_heads, kHeadDim, shape.format};
    const size_t of_layer = num_blocks * DensePoolView::BlockBytes(geometry_);
    geometry_.num_layers = static_cast<uint32_t>(std::clamp<size_t>(kPoolBytes / of_layer, 1, 32));
    std::vector<DenseBlockId> ids(num_blocks);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random_);
    blocks_ = machine.Upload(ids);
    const auto* next = blocks_.as<const DenseBlockId>().device_data();
    std::vector<DenseZone> zones;
    size_t done = 0;
    for (const int32_t tokens : shape.tokens) {
      if (zones.empty()) first_ids_.assign(ids.begin(), ids.begin() + NumBlocks(tokens));
      zones.push_back({next + done, static_cast<int32_t>(kSinkTokens),
                       tokens - static_cast<int32_t>(kSinkTokens)});
      done += static_cast<size_t>(NumBlocks(tokens));
      bytes_ += tokens * geometry_.token_bytes() / geometry_.num_layers;
    }
    zones_ = machine.Upload(zones);
    if (shape.pages > 0) MakePages(batch);
    const int64_t cols = int64_t{shape.kv_heads} * shape.group * kHeadDim;
    queries_ = machine.Allocate(static_cast<size_t>(batch * cols) * 2);
    out_ = machine.Allocate(static_cast<size_t>(batch * cols) * 2);
    bench::FillBf16(queries_.bytes().device_data(), queries_.size_bytes(), 3, machine.stream());
    const auto heads = static_cast<int32_t>(shape.kv_heads) * shape.group;
    scratch_ = machine.Allocate(cuda::DecodeAttentionScratchBytes(batch, heads, kHeadDim));
    Must(cudaStreamSynchronize(machine.stream()));
  }

  uint32_t num_layers() const { return geometry_.num_layers; }
  size_t bytes() const { return bytes_; }

  void Enqueue(uint32_t layer) {
    const int64_t batch = static_cast<int64_t>(shape_.tokens.size());
    const int64_t cols = int64_t{shape_.kv_heads} * shape_.group * kHeadDim;
    DecodeAttentionArgs args = {
        .queries = MatrixView::Dense(queries_.bytes(), DType::kBf16, batch, cols),
        .pool = {{machine_.pool(), kPoolBytes}, geometry_},
        .layer = layer,
        .zones = zones_.as<const DenseZone>(),
        .pages = {},
        .num_pages = {},
        .max_pages = max_pages_,
        .estimate = {},
        .scale = Scale(),
        .out = MatrixView::Dense(out_.bytes(), DType::kBf16, batch, cols),
        .scratch = scratch_.bytes()};
    if (shape_.pages > 0) {
      const auto lists = static_cast<size_t>(batch) * shape_.kv_heads;
      const size_t of_layer = lists * static_cast<size_t>(max_pages_);
      args.pages = pages_.as<const PageRef>().subspan(layer * of_layer, of_layer);
      args.num_pages = num_pages_.as<const int32_t>().subspan(layer * lists, lists);
    }
    const absl::Status status = cuda::DecodeAttention(machine_.cuda_stream(), args);
    RI_CHECK(status.ok());
  }

  // Largest difference of the first sequence from the reference, over the largest value.
  double Error(uint32_t layer) {
    const int32_t heads = static_cast<int32_t>(shape_.kv_heads) * shape_.group;
    std::vector<const std::byte*> tokens;
    for (uint32_t head = 0; head < shape_.kv_heads; ++head) AddTokens(layer, head, tokens);
    const auto num_tokens = static_cast<int32_t>(tokens.size() / shape_.kv_heads);
    const DeviceBuffer list = machine_.Upload(tokens);
    const DeviceBuffer scores =
        machine_.Allocate(sizeof(float) * tokens.size() * static_cast<size_t>(shape_.group));
    const DeviceBuffer want_buffer = machine_.Allocate(size_t{4} * kHeadDim * heads);
    Enqueue(layer);
    bench::Reference({.queries = queries_.bytes().device_data(),
                      .tokens = list.as<const std::byte* const>().device_data(),
                      .num_tokens = num_tokens,
                      .kv_heads = static_cast<int32_t>(shape_.kv_heads),
                      .group = shape_.group,
                      .value_offset = kPageBytes / 2,
                      .scale = Scale(),
                      .scores = scores.as<float>().device_data(),
                      .out = want_buffer.as<float>().device_data()},
                     machine_.stream());
    Must(cudaStreamSynchronize(machine_.stream()));
    std::vector<float> want(static_cast<size_t>(heads) * kHeadDim);
    std::vector<uint16_t> got(want.size());
    Must(cudaMemcpy(want.data(), want_buffer.bytes().device_data(), want.size() * 4,
                    cudaMemcpyDeviceToHost));
    Must(
        cudaMemcpy(got.data(), out_.bytes().device_data(), got.size() * 2, cudaMemcpyDeviceToHost));
    double error = 0, largest = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const uint32_t bits = uint32_t{got[i]} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      const double difference = std::abs(double{value} - want[i]);
      error = difference <= error ? error : difference;  // keeps NaN
      largest = std::max(largest, std::abs(double{want[i]}));
    }
    return error / largest;
  }

 private:
  static int32_t NumBlocks(int32_t tokens) {
    return 1 + (tokens - static_cast<int32_t>(kSinkTokens) + 63) / 64;
  }
  static float Scale() { return 1.0f / std::sqrt(static_cast<float>(kHeadDim)); }

  // Every layer has pages of its own, anywhere among the slots; heads differ in their number; most
  // pages are full, a cluster's last one need not be.
  void MakePages(int32_t batch) {
    const auto heads = static_cast<int32_t>(shape_.kv_heads);
    const int32_t mean = shape_.pages / heads;
    max_pages_ = mean * 3 / 2;
    std::vector<uint32_t> slots(kSlotBytes / kPageBytes);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random_);
    size_t next = 0;
    std::vector<PageRef> refs;
    for (uint32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t list = 0; list < batch * heads; ++list) {
        // From 65 % to 135 % of the mean, and the mean on average.
        const int32_t count = mean * (65 + 70 * (list % heads) / (heads - 1)) / 100;
        counts_.push_back(count);
        for (int32_t i = 0; i < max_pages_; ++i) {
          const uint32_t per_page = geometry_.tokens_per_page();
          const auto tokens =
              static_cast<int32_t>(i % 4 == 3 ? 1 + random_() % per_page : per_page);
          refs.push_back({machine_.slots() + slots[next++ % slots.size()] * kPageBytes, tokens, 0});
          if (layer == 0 && i < count)
            bytes_ += static_cast<size_t>(tokens) * 2 * geometry_.page().vector_bytes;
        }
      }
    }
    refs_ = refs;
    pages_ = machine_.Upload(refs);
    num_pages_ = machine_.Upload(counts_);
  }

  // Adds the addresses of the keys of the first sequence, and nulls up to the most a head may have.
  void AddTokens(uint32_t layer, uint32_t head, std::vector<const std::byte*>& tokens) {
    const DensePoolView view = {{machine_.pool(), kPoolBytes}, geometry_};
    for (int32_t t = 0; t < shape_.tokens[0]; ++t) {
      const auto sink = static_cast<int32_t>(kSinkTokens);
      const int32_t block = t < sink ? 0 : 1 + (t - sink) / 64,
                    place = t < sink ? t : (t - sink) % 64;
      tokens.push_back(view.Run(first_ids_[static_cast<size_t>(block)], layer, head) +
                       place / 4 * static_cast<int32_t>(kPageBytes) + place % 4 * 256);
    }
    const size_t list = layer * shape_.tokens.size() * shape_.kv_heads + head;
    for (int64_t i = 0; i < max_pages_; ++i) {
      const PageRef& ref = refs_[list * static_cast<size_t>(max_pages_) + static_cast<size_t>(i)];
      for (int32_t t = 0; t < 4; ++t) {
        const bool is_there = i < counts_[list] && t < ref.num_tokens;
        tokens.push_back(is_there ? ref.page + t * 256 : nullptr);
      }
    }
  }

  Machine& machine_;
  const Shape shape_;
  KvGeometry geometry_;
  std::mt19937_64 random_{7};
  std::vector<DenseBlockId> first_ids_;
  std::vector<PageRef> refs_;
  std::vector<int32_t> counts_;
  int64_t max_pages_ = 0;
  size_t bytes_ = 0;  // of K and V that one launch reads
  DeviceBuffer blocks_, zones_, pages_, num_pages_, queries_, out_, scratch_;
};

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (const int32_t batch : {1, 3, 8}) {
    for (const int32_t tokens : {8192, 32768, 65536, 122880}) {
      shapes.push_back({"dense", std::vector<int32_t>(static_cast<size_t>(batch), tokens)});
    }
  }
  for (const size_t batch : {7, 12}) {
    for (const int32_t tokens : {8192, 122880}) {
      shapes.push_back({"dense", std::vector<int32_t>(batch, tokens)});
    }
  }
  for (const size_t batch : {1, 3, 7, 12}) {
    shapes.push_back({"dense", std::vector<int32_t>(batch, 524288)});
  }
  std::vector<int32_t> ragged(8, 4096);
  ragged[3] = 122880;
  shapes.push_back({"dense, one long", ragged});
  shapes.push_back({"dense, group 8", {122880}, 0, 8, 8});
  shapes.push_back({"dense, 4 heads of 7", {122880}, 0, 4, 7});
  for (const size_t batch : {1, 3, 8}) {
    shapes.push_back({"wave", std::vector<int32_t>(batch, 1100), 5500});
  }
  for (const size_t batch : {1, 3, 8}) {
    shapes.push_back({"wave, int8", std::vector<int32_t>(batch, 1100), 2750, 8, 4, kInt8Kv});
  }
  for (const size_t batch : {1, 3, 7, 8, 12}) {
    for (const int32_t tokens : {8192, 122880, 524288}) {
      shapes.push_back({"dense, int8", std::vector<int32_t>(batch, tokens), 0, 8, 4, kInt8Kv});
    }
  }
  return shapes;
}

bool RunShape(Machine& machine, const Shape& shape, bool json) {
  Decode decode(machine, shape);
  // Values average out over a long context, and results are bf16.
  constexpr double kAllowed = 1.0 / 200;
  const double error = shape.format == kBf16Kv ? decode.Error(decode.num_layers() - 1) : 0;
  const auto layers = static_cast<int>(decode.num_layers());
  const double us = machine.Microseconds(layers, [&] {
    for (int i = 0; i < layers; ++i) decode.Enqueue(static_cast<uint32_t>(i));
  });
  const size_t bytes = decode.bytes() / 16 * 16;
  const size_t places = std::min<size_t>(kPoolBytes / bytes, 32);
  const double read_us = machine.Microseconds(static_cast<int>(places), [&] {
    for (size_t i = 0; i < places; ++i) {
      bench::ReadAll(machine.pool() + i * bytes, bytes, machine.sink(), machine.stream());
    }
  });
  const double speed = static_cast<double>(bytes) / us / 1e3;
  const double read_speed = static_cast<double>(bytes) / read_us / 1e3;
  const auto longest = *std::max_element(shape.tokens.begin(), shape.tokens.end());
  if (json) {
    const nlohmann::json line = {{"benchmark", "decode_attention"},
                                 {"who", "retroinfer"},
                                 {"shape", shape.name},
                                 {"batch", shape.tokens.size()},
                                 {"tokens", longest},
                                 {"pages", shape.pages},
                                 {"us", us},
                                 {"gb_per_second", speed},
                                 {"read_us", read_us},
                                 {"read_gb_per_second", read_speed},
                                 {"share_of_read", speed / read_speed},
                                 {"error", error},
                                 {"commit", std::string(common::kBuildRevision)}};
    std::printf("%s\n", line.dump().c_str());
  } else {
    std::printf("%-20s %5zu %7d %6d %9.1f %7.0f %9.1f %7.0f %6.1f%% %9.1e\n", shape.name.c_str(),
                shape.tokens.size(), longest, shape.pages, us, speed, read_us, read_speed,
                100 * speed / read_speed, error);
  }
  std::fflush(stdout);
  if (error <= kAllowed) return true;
  std::fprintf(stderr, "decode_attention_cuda_bench: %s: error %g, at most %g allowed\n",
               shape.name.c_str(), error, kAllowed);
  return false;
}

struct Choice {
  bool json = false;
  std::string shape;   // empty: all
  int32_t tokens = 0;  // 0: all

  bool Has(const Shape& candidate) const {
    return (shape.empty() || shape == candidate.name) &&
           (tokens == 0 ||
            tokens == *std::max_element(candidate.tokens.begin(), candidate.tokens.end()));
  }
};

int Main(const Choice& choice) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "decode_attention_cuda_bench: no GPU, nothing measured\n");
    return 0;
  }
  Machine machine;
  if (!choice.json) {
    std::printf("%s, head_dim %u, bf16\n%-20s %5s %7s %6s %9s %7s %9s %7s %7s %9s\n",
                machine.info().name.c_str(), kHeadDim, "shape", "batch", "tokens", "pages", "us",
                "GB/s", "read us", "GB/s", "share", "error");
  }
  bool ok = true;
  for (const Shape& shape : Shapes()) {
    if (choice.Has(shape)) ok = RunShape(machine, shape, choice.json) && ok;
  }
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) {
  retroinfer::Choice choice;
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (std::strcmp(argv[i], "--json") == 0) {
      choice.json = true;
    } else if (std::strcmp(argv[i], "--shape") == 0 && has_value) {
      choice.shape = argv[++i];
    } else if (std::strcmp(argv[i], "--tokens") == 0 && has_value) {
      choice.tokens = std::atoi(argv[++i]);
    } else {
      std::fprintf(stderr,
                   "usage: decode_attention_cuda_bench [--json] [--shape NAME] [--tokens N]; "
                   "got '%s'\n",
                   argv[i]);
      return 2;
    }
  }
  return retroinfer::Main(choice);
}
