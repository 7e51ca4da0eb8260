#include "gpu_worker/engine/engine_assembly.h"

#include <utility>

#include "common/status/status_macros.h"
#include "gpu_worker/engine/segment_claim.h"
#include "gpu_worker/synthetic/drifting_queries.h"
#include "gpu_worker/synthetic/synthetic_prefill.h"

namespace retroinfer {
namespace {

// Sequences that have ended keep their row until the background has let go of them, and prompts are
// read while all places of the batch are taken.
int32_t MaxSequences(const MemoryPlan& plan) { return 2 * plan.max_batch + 2; }

absl::StatusOr<std::unique_ptr<WavePolicy>> MakeWavePolicy(const EngineEnvironment& environment,
                                                           const MemoryPlan& plan,
                                                           const WaveIndexSettings& settings,
                                                           KvMemory& memory, BlockCache& cache) {
  Device& device = *environment.device;
  Ops& ops = *environment.ops;
  SegmentStore& store = *environment.store;
  WavePolicy::Parts wave{.device = &device,
                         .ops = &ops,
                         .stream = environment.compute,
                         .memory = &memory,
                         .cache = &cache};
  // A prompt in each lane, and for each sequence that holds memory a segment of generated tokens
  // or, where it has just outgrown dense attention, all of its context.
  const int64_t max_open = 2 * (plan.max_model_len / kPrefillSegmentTokens + 8) +
                           MaxSequences(plan) * (1 + settings.dense_below / kDecodeSegmentTokens);
  ASSIGN_OR_RETURN(
      wave.builder,
      SegmentBuilder::Create(device, ops, *environment.background, memory.meta_pool(),
                             {.host = environment.arena, .device = cache.device_arena()}, settings,
                             {.max_open_segments = static_cast<int32_t>(max_open)}));
  ASSIGN_OR_RETURN(
      wave.decode,
      WaveDecode::Create(
          device, ops, *environment.compute, cache, memory.dense_pool(), memory.meta_pool(),
          {.num_query_heads = static_cast<int32_t>(environment.model->config().num_query_heads),
           .max_batch = plan.max_batch,
           .max_tokens = plan.max_model_len,
           .radius_weight = settings.radius_weight}));
  wave.on_built = [&store](const SequenceKv& sequence, size_t segment, int64_t token_begin) {
    store.Commit(sequence.sequence_id, CommitOf(sequence, segment, token_begin));
  };
  return WavePolicy::Create(settings, plan.max_batch, std::move(wave));
}

}  // namespace

absl::StatusOr<EngineParts> AssembleEngine(const EngineEnvironment& environment,
                                           const MemoryPlan& plan,
                                           const WaveIndexSettings& settings) {
  Device& device = *environment.device;
  Ops& ops = *environment.ops;
  Stream& compute = *environment.compute;
  EngineParts parts{.device = &device,
                    .ops = &ops,
                    .stream = &compute,
                    .model = environment.model,
                    .tokenizer = environment.tokenizer,
                    .store = environment.store};
  ASSIGN_OR_RETURN(parts.memory, KvMemory::Create(device, {.geometry = plan.geometry,
                                                           .dense_blocks = plan.dense_blocks,
                                                           .meta_blocks = plan.meta_blocks,
                                                           .max_sequences = MaxSequences(plan),
                                                           .max_model_len = plan.max_model_len}));
  ASSIGN_OR_RETURN(parts.cache, BlockCache::Create(device, ops.block_cache(), compute,
                                                   {.num_slots = plan.num_slots,
                                                    .num_transient = plan.num_transient_slots},
                                                   environment.arena, environment.data_plane));
  ASSIGN_OR_RETURN(
      parts.full,
      FullPolicy::Create(
          device, ops.attention(), compute, parts.memory->dense_pool(), parts.memory->tables(),
          static_cast<int32_t>(environment.model->config().num_query_heads), plan.max_batch));
  ASSIGN_OR_RETURN(parts.wave,
                   MakeWavePolicy(environment, plan, settings, *parts.memory, *parts.cache));
  parts.full_requests = parts.full.get();
  parts.wave_requests = parts.wave.get();
  return parts;
}

SyntheticShape SyntheticShapeOf(const ModelConfig& config, const KvGeometry& geometry,
                                int64_t max_tokens, std::optional<double> overlap) {
  return {.geometry = geometry,
          .num_query_heads = static_cast<int32_t>(config.num_query_heads),
          .max_tokens = max_tokens,
          .overlap = overlap};
}

absl::Status AddSyntheticContexts(const EngineEnvironment& environment, const MemoryPlan& plan,
                                  std::optional<double> overlap, EngineParts& parts) {
  Device& device = *environment.device;
  Ops& ops = *environment.ops;
  ASSIGN_OR_RETURN(
      SyntheticContext context,
      SyntheticContext::Create(device, ops,
                               SyntheticShapeOf(environment.model->config(), plan.geometry,
                                                plan.max_model_len, overlap)));
  parts.synthetic_context = std::make_unique<SyntheticContext>(std::move(context));
  for (AttentionPolicy** const policy : {&parts.full_requests, &parts.wave_requests}) {
    ASSIGN_OR_RETURN(std::unique_ptr<DriftingQueries> drifting,
                     DriftingQueries::Create(device, ops.model(), *environment.compute, **policy,
                                             *parts.synthetic_context, plan.geometry.num_layers,
                                             plan.max_batch));
    auto prefill =
        std::make_unique<SyntheticPrefill>(*environment.compute, *environment.background, *drifting,
                                           *parts.synthetic_context, plan.synthetic_tokens);
    *policy = prefill.get();
    parts.decorators.push_back(std::move(drifting));
    parts.decorators.push_back(std::move(prefill));
  }
  return absl::OkStatus();
}

}  // namespace retroinfer
