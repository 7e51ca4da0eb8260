// What components say that they take, against what they do take of a device that counts.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "gpu_worker/assembly/engine_assembly.h"
#include "gpu_worker/executor/decode_step.h"
#include "gpu_worker/executor/prefill_lane.h"
#include "gpu_worker/executor/sampler.h"
#include "gpu_worker/kv/window_layers.h"
#include "gpu_worker/model/random_weights.h"
#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "gpu_worker/ops/backend/cuda/cuda_needs.h"
#include "tests/support/backends.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/data_plane_memory.h"
#include "tests/support/fake_segment_store.h"
#include "text/tokenizer/tokenizer.h"

namespace retroinfer {

void PrintTo(const MemoryNeed& need, std::ostream* out) {
  for (int i = 0; i < static_cast<int>(MemoryPurpose::kCount); ++i) {
    const auto purpose = static_cast<MemoryPurpose>(i);
    *out << MemoryPurposeName(purpose) << ' ' << need[purpose] << "; ";
  }
}

namespace {

using test_support::Backend;

ModelConfig Shape(uint32_t layers, uint32_t heads, uint32_t kv_heads, uint32_t head_dim) {
  ModelConfig config;
  config.num_layers = layers;
  config.num_query_heads = heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = head_dim;
  config.hidden_size = int64_t{heads} * head_dim;
  config.intermediate_size = 3 * config.hidden_size - 64;
  config.vocab_size = 517;
  config.context_length = 65'536;
  config.rms_norm_epsilon = 1e-5f;
  config.dtype = DType::kBf16;
  return config;
}

ModelConfig WithWindows(ModelConfig config, std::vector<int32_t> layer_windows) {
  config.layer_windows = std::move(layer_windows);
  return config;
}

struct Case {
  std::string name;
  ModelConfig model;
  int64_t max_model_len;
  int32_t max_batch;
  int64_t dense_below = 8192;
  int64_t max_whole_prompt = 0;
  float radius_weight = 0.5f;
  uint32_t arena_pages = 4096;
  int64_t synthetic_tokens = 0;
};

std::vector<Case> Cases() {
  return {{.name = "long",
           .model = Shape(3, 4, 2, 64),
           .max_model_len = 40'000,
           .max_batch = 3,
           .dense_below = 2048,
           .arena_pages = 12'001},
          {.name = "short", .model = Shape(2, 2, 1, 64), .max_model_len = 1500, .max_batch = 1},
          {.name = "wide heads, no radius",
           .model = Shape(2, 6, 2, 128),
           .max_model_len = 20'011,
           .max_batch = 5,
           .radius_weight = 0},
          {.name = "parts of prompts, no room in the arena",
           .model = Shape(1, 2, 2, 128),
           .max_model_len = 60'000,
           .max_batch = 2,
           .max_whole_prompt = 4000,
           .arena_pages = 7},
          {.name = "window layers",
           .model = WithWindows(Shape(3, 4, 2, 64), {100, 0, 300}),
           .max_model_len = 10'000,
           .max_batch = 3},
          {.name = "synthetic contexts",
           .model = Shape(2, 4, 2, 64),
           .max_model_len = 24'000,
           .max_batch = 2,
           .synthetic_tokens = 16'000}};
}

MemoryNeed Allocated(const Device& device) {
  MemoryNeed allocated;
  for (int i = 0; i < static_cast<int>(MemoryPurpose::kCount); ++i) {
    const auto purpose = static_cast<MemoryPurpose>(i);
    allocated[purpose] = device.allocated_bytes(purpose);
  }
  return allocated;
}

// A worker's surroundings, and a plan for them.
class Planned {
 public:
  Planned(std::unique_ptr<Backend> backend, const Case& limits, const KvFormat& format)
      : backend_(std::move(backend)), format_(format), limits_(limits) {
    settings_.dense_below = limits.dense_below;
    settings_.radius_weight = limits.radius_weight;
    before_ = Allocated(device());
    weights_ = RandomModelWeights(device(), backend_->ops->model(), limits.model).value();
    const BackendNeeds& needs = device().info().backend == "cuda" ? kCudaNeeds : kCpuNeeds;
    MemoryPlanInput input{.model = limits.model,
                          .kv_format = format,
                          .backend = needs,
                          .index = settings_,
                          .weight_bytes = device().allocated_bytes(MemoryPurpose::kWeights),
                          .max_model_len = limits.max_model_len,
                          .max_whole_prompt = limits.max_whole_prompt,
                          .synthetic_tokens = limits.synthetic_tokens,
                          .max_batch = limits.max_batch,
                          .prefill_rows = 96,
                          .arena_pages = limits.arena_pages,
                          .available_bytes = size_t{4} << 30};
    input.block_cache_bytes = 777 * input.geometry().page_bytes();
    if (limits.synthetic_tokens > 0) {
      input.synthetic_bytes =
          SyntheticBytes(SyntheticShapeOf(limits.model, input.geometry(), limits.max_model_len, {}),
                         needs.activation_dtype, limits.max_batch);
    }
    plan_ = PlanMemory(input).value();
    store_ = std::make_unique<test_support::FakeSegmentStore>(plan_.geometry, limits.arena_pages);
    plane_ = std::make_unique<test_support::DataPlaneMemory>(plan_.num_slots, 2048, 64,
                                                             limits.arena_pages);
  }

  Device& device() { return *backend_->device; }
  Ops& ops() { return *backend_->ops; }
  Stream& stream() { return *backend_->stream; }
  const MemoryPlan& plan() const { return plan_; }
  const WaveIndexSettings& settings() const { return settings_; }
  const ModelConfig& model() const { return limits_.model; }
  // Once.
  std::unique_ptr<Transformer> MakeModel() {
    return Transformer::Create(device(), ops(), limits_.model, std::move(weights_),
                               {.max_prefill_rows = plan_.prefill_rows,
                                .max_decode_rows = plan_.max_batch,
                                .max_positions = plan_.max_model_len,
                                .progress = {}})
        .value();
  }
  test_support::DataPlaneMemory& plane() { return *plane_; }
  test_support::FakeSegmentStore& store() { return *store_; }
  Stream& background() { return *backend_->background; }
  // Since before the weights.
  MemoryNeed Taken() {
    MemoryNeed taken = Allocated(device());
    for (int i = 0; i < static_cast<int>(MemoryPurpose::kCount); ++i) {
      taken[static_cast<MemoryPurpose>(i)] -= before_[static_cast<MemoryPurpose>(i)];
    }
    return taken;
  }

  // What the plan says of a component against what `create` takes.
  void Check(std::string_view component, const std::function<void()>& create) {
    const MemoryNeed before = Taken();
    create();
    for (const ComponentMemory& planned : plan_.components) {
      if (planned.name != component) continue;
      EXPECT_EQ(before + planned.need, Taken())
          << component << ", " << limits_.name << ", " << format_.name;
      ++num_checked_;
      return;
    }
    ADD_FAILURE() << component << " is not in the plan";
  }
  size_t num_checked() const { return num_checked_; }

 private:
  const std::unique_ptr<Backend> backend_;
  const KvFormat format_;
  const Case limits_;
  WaveIndexSettings settings_;
  ModelWeights weights_;
  MemoryNeed before_;
  MemoryPlan plan_;
  std::unique_ptr<test_support::FakeSegmentStore> store_;
  std::unique_ptr<test_support::DataPlaneMemory> plane_;
  size_t num_checked_ = 0;
};

class MemoryOfComponentsTest : public testing::TestWithParam<test_support::BackendParam> {
 protected:
  // For each case, and the first one with each format that the backend has code for.
  void ForEach(const std::function<void(Planned&)>& check) {
    const auto formats = test_support::KvFormatsOf(*GetParam().create());
    ASSERT_FALSE(formats.empty());
    const std::vector<Case> cases = Cases();
    for (const Case& limits : cases) {
      for (const KvFormat& format : formats) {
        if (&limits != &cases.front() && &format != &formats.front()) continue;
        Planned planned(GetParam().create(), limits, format);
        check(planned);
      }
    }
  }
};

// The components of a worker, made one by one and checked.
struct Components {
  std::unique_ptr<Transformer> model;
  std::unique_ptr<KvMemory> memory;
  std::unique_ptr<WindowLayers> windows;
  std::unique_ptr<BlockCache> cache;
  std::unique_ptr<SequenceSegments> segments;
  std::vector<std::unique_ptr<AttentionPolicy>> policies;
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<DecodeStep> step;
  std::vector<std::unique_ptr<PrefillLane>> lanes;
};

void MakeMemory(Planned& planned, Components& made) {
  const MemoryPlan& plan = planned.plan();
  planned.Check("model", [&] { made.model = planned.MakeModel(); });
  planned.Check("sequences", [&] {
    made.memory = KvMemory::Create(planned.device(), {.geometry = plan.geometry,
                                                      .dense_blocks = plan.dense_blocks,
                                                      .meta_blocks = plan.meta_blocks,
                                                      .max_sequences = plan.max_sequences,
                                                      .max_model_len = plan.max_model_len})
                      .value();
  });
  if (plan.geometry.has_window_layers()) {
    planned.Check("window layers", [&] {
      made.windows = WindowLayers::Create(
                         planned.device(), planned.ops().attention(), planned.stream(),
                         {.geometry = plan.geometry,
                          .num_rows = plan.max_sequences,
                          .max_batch = plan.max_batch,
                          .num_query_heads = static_cast<int32_t>(planned.model().num_query_heads)})
                         .value();
    });
  }
  planned.Check("block cache", [&] {
    made.cache = BlockCache::Create(planned.device(), planned.ops().block_cache(), planned.stream(),
                                    {.num_slots = plan.num_slots,
                                     .num_transient = plan.num_transient_slots,
                                     .page_bytes = plan.geometry.page_bytes()},
                                    planned.store().arena(), planned.plane().bytes())
                     .value();
  });
}

void MakePolicies(Planned& planned, Components& made) {
  const MemoryPlan& plan = planned.plan();
  SequenceSegments::Parts parts{.device = &planned.device(),
                                .ops = &planned.ops().index(),
                                .stream = &planned.stream(),
                                .memory = made.memory.get(),
                                .cache = made.cache.get()};
  planned.Check("segments", [&] {
    parts.builder =
        SegmentBuilder::Create(planned.device(), planned.ops(), planned.background(),
                               made.memory->meta_pool(),
                               {planned.store().arena(), made.cache->device_arena()},
                               planned.settings(), {.max_open_segments = plan.max_open_segments})
            .value();
    made.segments = SequenceSegments::Create(planned.settings(), std::move(parts)).value();
  });
  const PolicyParts policy_parts = {
      .device = &planned.device(),
      .ops = &planned.ops(),
      .stream = &planned.stream(),
      .memory = made.memory.get(),
      .cache = made.cache.get(),
      .segments = made.segments.get(),
      .num_query_heads = static_cast<int32_t>(planned.model().num_query_heads),
      .max_batch = plan.max_batch,
      .max_tokens = plan.max_model_len};
  for (const PolicyEntry& entry : PolicyTable()) {
    planned.Check(PolicyName(entry.kind),
                  [&] { made.policies.push_back(entry.create(policy_parts).value()); });
  }
}

void MakeSteps(Planned& planned, Components& made) {
  const MemoryPlan& plan = planned.plan();
  planned.Check("sampler", [&] {
    made.sampler = Sampler::Create(planned.device(), planned.ops().model(), planned.stream(),
                                   plan.max_batch, planned.model().vocab_size)
                       .value();
  });
  planned.Check("decode step", [&] {
    made.step = DecodeStep::Create(planned.device(), planned.stream(), *made.model, *made.sampler,
                                   plan.max_batch)
                    .value();
  });
  const auto add_lane = [&](int64_t max_tokens) {
    made.lanes.push_back(PrefillLane::Create({.device = &planned.device(),
                                              .ops = &planned.ops(),
                                              .stream = &planned.stream(),
                                              .model = made.model.get(),
                                              .arena = made.cache->device_arena()},
                                             plan.geometry, max_tokens, plan.prefill_rows,
                                             plan.max_batch)
                             .value());
  };
  planned.Check("long lane", [&] { add_lane(plan.long_lane_tokens); });
  planned.Check("short lane", [&] { add_lane(plan.short_lane_tokens); });
}

TEST_P(MemoryOfComponentsTest, EachTakesWhatItSays) {
  ForEach([](Planned& planned) {
    Components made;
    MakeMemory(planned, made);
    MakePolicies(planned, made);
    MakeSteps(planned, made);
    EXPECT_EQ(planned.num_checked() + 1, planned.plan().components.size())
        << "all but synthetic contexts";
  });
}

TEST_P(MemoryOfComponentsTest, AWholeWorkerTakesWhatThePlanSays) {
  const auto tokenizer = MakeByteTokenizer();
  ForEach([&](Planned& planned) {
    const MemoryPlan& plan = planned.plan();
    const auto model = planned.MakeModel();
    const EngineEnvironment environment = {.device = &planned.device(),
                                           .ops = &planned.ops(),
                                           .compute = &planned.stream(),
                                           .background = &planned.background(),
                                           .model = model.get(),
                                           .tokenizer = tokenizer.get(),
                                           .store = &planned.store(),
                                           .arena = planned.store().arena(),
                                           .data_plane = planned.plane().bytes()};
    EngineParts parts = AssembleEngine(environment, plan, planned.settings()).value();
    if (plan.synthetic_tokens > 0) {
      ASSERT_TRUE(AddSyntheticContexts(environment, plan, {}, parts.executor).ok());
    }
    const auto engine = LocalEngine::Start({.plan = plan}, std::move(parts)).value();
    EXPECT_EQ(planned.Taken(), plan.need);
    EXPECT_EQ(plan.need.total() + plan.unused_bytes, size_t{4} << 30);
  });
}

// A plan for a machine with a GPU is made without one: its numbers are those of the operations.
TEST_P(MemoryOfComponentsTest, BackendsNeedWhatTheirOperationsSay) {
  const auto backend = GetParam().create();
  const BackendNeeds& needs = backend->device->info().backend == "cuda" ? kCudaNeeds : kCpuNeeds;
  Ops& ops = *backend->ops;
  EXPECT_EQ(needs.activation_dtype, ops.model().activation_dtype());
  EXPECT_EQ(needs.uses_transient_slots, ops.block_cache().uses_transient_slots());
  for (const int32_t batch : {1, 7, 100}) {
    for (const int32_t head_dim : {64, 128}) {
      for (const int32_t heads : {2, 32}) {
        EXPECT_EQ(needs.decode_attention_scratch(batch, heads, head_dim),
                  ops.attention().DecodeAttentionScratchBytes(batch, heads, head_dim));
        EXPECT_EQ(needs.shared_page_attention_scratch(batch, heads, head_dim),
                  ops.attention().SharedPageAttentionScratchBytes(batch, heads, head_dim));
        EXPECT_EQ(needs.estimate_scratch(batch, heads, head_dim, 1000),
                  ops.index().EstimateScratchBytes(batch, heads, head_dim, 1000));
        EXPECT_EQ(needs.cluster_keys_scratch(8, static_cast<uint32_t>(head_dim), 1024 * batch,
                                             64 * batch),
                  ops.index().ClusterKeysScratchBytes(8, static_cast<uint32_t>(head_dim),
                                                      1024 * batch, 64 * batch));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MemoryOfComponentsTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
