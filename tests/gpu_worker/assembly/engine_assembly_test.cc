#include "gpu_worker/assembly/engine_assembly.h"

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/log/check.h"
#include "common/shm/data_plane.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/ops/backend/cpu/cpu_ops.h"
#include "tests/support/fake_segment_store.h"
#include "tests/support/loaded_model.h"

namespace retroinfer {
namespace {

constexpr uint32_t kArenaPages = 4096, kSlots = 512;

// A model and a store on a device of `memory_bytes`.
class Surroundings {
 public:
  explicit Surroundings(size_t memory_bytes) {
    auto device = std::make_unique<CpuDevice>(CpuDeviceOptions{.memory_limit_bytes = memory_bytes});
    backend_.ops = std::make_unique<CpuOps>(*device, ComputePrecision::kBf16);
    backend_.device = std::move(device);
    backend_.stream = backend_.device->CreateStream(StreamKind::kCompute).value();
    backend_.background = backend_.device->CreateStream(StreamKind::kBackground).value();
    model_ = test_support::LoadGoldenModel(backend_, "llama-d64-untied-bf16", 64, 4);
    store_ = std::make_unique<test_support::FakeSegmentStore>(geometry(), kArenaPages);
    const DataPlaneHeader header = MakeDataPlaneHeader(kSlots, 2048, 64, kArenaPages);
    storage_.resize(header.total_bytes + 4096);
    void* address = storage_.data();
    size_t space = storage_.size();
    RI_CHECK(std::align(4096, header.total_bytes, address, space) != nullptr);
    plane_ = {static_cast<std::byte*>(address), header.total_bytes};
    DataPlane::Format(plane_, header);
  }

  KvGeometry geometry() const { return model_->config().geometry(kBf16Kv); }
  const ModelConfig& config() const { return model_->config(); }
  const Device& device() const { return *backend_.device; }
  EngineEnvironment environment() {
    return {.device = backend_.device.get(),
            .ops = backend_.ops.get(),
            .compute = backend_.stream.get(),
            .background = backend_.background.get(),
            .model = model_.get(),
            .store = store_.get(),
            .arena = store_->arena(),
            .data_plane = plane_};
  }

 private:
  test_support::Backend backend_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<test_support::FakeSegmentStore> store_;
  std::vector<std::byte> storage_;
  std::span<std::byte> plane_;
};

TEST(EngineAssemblyTest, TakesWhatThePlanSaysAndFailsWhereTheDeviceHasLess) {
  for (const bool enough : {true, false}) {
    Surroundings surroundings(enough ? size_t{1} << 30 : size_t{8} << 20);
    const MemoryPlan plan{.geometry = surroundings.geometry(),
                          .dense_blocks = 64,
                          .meta_blocks = 16,
                          .num_slots = kSlots,
                          .num_transient_slots = 4096,
                          .max_model_len = 16384,
                          .max_batch = 4,
                          .max_step_rows = 4,
                          .max_sequences = 10,
                          .max_open_segments = 100};
    const EngineEnvironment environment = surroundings.environment();
    auto parts = AssembleEngine(environment, plan, WaveIndexSettings{});
    if (!enough) {
      EXPECT_EQ(parts.status().code(), absl::StatusCode::kResourceExhausted) << parts.status();
      continue;
    }
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_EQ(parts->executor.memory->dense_blocks().total(), 64);
    EXPECT_EQ(parts->executor.memory->meta_blocks().total(), 16);
    const AttentionPolicy& full = parts->executor.policies.Of(PolicyKind::kFull);
    const AttentionPolicy& wave = parts->executor.policies.Of(PolicyKind::kWave);
    const AttentionSettings settings;

    MemoryPlan synthetic = plan;
    synthetic.synthetic_tokens = 10'000;
    ASSERT_TRUE(AddSyntheticContexts(environment, synthetic, 0.99, parts->executor).ok());
    EXPECT_EQ(
        parts->executor.policies.Of(PolicyKind::kWave).Need(settings, 100, 200).segment_tokens,
        wave.Need(settings, 10'100, 10'200).segment_tokens);
    EXPECT_EQ(parts->executor.policies.Of(PolicyKind::kFull).Need(settings, 100, 200).dense_blocks,
              full.Need(settings, 10'100, 10'200).dense_blocks);
  }
}

}  // namespace
}  // namespace retroinfer
