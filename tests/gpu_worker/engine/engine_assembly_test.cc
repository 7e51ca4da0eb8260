#include "gpu_worker/engine/engine_assembly.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/shm/data_plane.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/ops/cpu/cpu_ops.h"
#include "tests/support/fake_segment_store.h"
#include "tests/support/loaded_model.h"

namespace retroinfer {
namespace {

TEST(EngineAssemblyTest, TakesWhatThePlanSaysAndFailsWhereTheDeviceHasLess) {
  constexpr uint32_t kArenaPages = 4096, kSlots = 512;
  for (const bool enough : {true, false}) {
    test_support::Backend backend;
    auto device = std::make_unique<CpuDevice>(
        CpuDeviceOptions{.memory_limit_bytes = enough ? size_t{1} << 30 : size_t{8} << 20});
    backend.ops = std::make_unique<CpuOps>(*device, ComputePrecision::kBf16);
    backend.device = std::move(device);
    backend.stream = backend.device->CreateStream(StreamKind::kCompute).value();
    backend.background = backend.device->CreateStream(StreamKind::kBackground).value();
    const auto model = test_support::LoadGoldenModel(backend, "llama-d64-untied-bf16", 64, 4);
    const KvGeometry geometry = model->config().geometry(DType::kBf16);
    test_support::FakeSegmentStore store(geometry, kArenaPages);
    const DataPlaneHeader header = MakeDataPlaneHeader(kSlots, 2048, 64, kArenaPages);
    std::vector<std::byte> storage(header.total_bytes + 4096);
    void* address = storage.data();
    size_t space = storage.size();
    ASSERT_NE(std::align(4096, header.total_bytes, address, space), nullptr);
    const std::span<std::byte> plane(static_cast<std::byte*>(address), header.total_bytes);
    DataPlane::Format(plane, header);
    const MemoryPlan plan{.geometry = geometry,
                          .dense_blocks = 64,
                          .meta_blocks = 16,
                          .num_slots = kSlots,
                          .num_transient_slots = 4096,
                          .max_model_len = 16384,
                          .max_batch = 4};
    const EngineEnvironment environment{.device = backend.device.get(),
                                        .ops = backend.ops.get(),
                                        .compute = backend.stream.get(),
                                        .background = backend.background.get(),
                                        .model = model.get(),
                                        .store = &store,
                                        .arena = store.arena(),
                                        .data_plane = plane};
    auto parts = AssembleEngine(environment, plan, WaveIndexSettings{});
    if (!enough) {
      EXPECT_EQ(parts.status().code(), absl::StatusCode::kResourceExhausted) << parts.status();
      continue;
    }
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_EQ(parts->memory->dense_blocks().total(), 64);
    EXPECT_EQ(parts->memory->meta_blocks().total(), 16);
    EXPECT_GE(backend.device->allocated_bytes(MemoryPurpose::kDenseKv), plan.dense_bytes());
    EXPECT_GE(backend.device->allocated_bytes(MemoryPurpose::kBlockCache),
              plan.block_cache_bytes());
    EXPECT_EQ(parts->full_requests, parts->full.get());
    EXPECT_EQ(parts->wave_requests, parts->wave.get());

    MemoryPlan synthetic = plan;
    synthetic.synthetic_tokens = 10'000;
    ASSERT_TRUE(AddSyntheticContexts(environment, synthetic, 0.99, *parts).ok());
    EXPECT_EQ(parts->wave_requests->Need(100, 200).segment_tokens,
              parts->wave->Need(10'100, 10'200).segment_tokens);
    EXPECT_EQ(parts->full_requests->Need(100, 200).dense_blocks,
              parts->full->Need(10'100, 10'200).dense_blocks);
  }
}

}  // namespace
}  // namespace retroinfer
