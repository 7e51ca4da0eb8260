#include "gpu_worker/assembly/engine_assembly.h"

#include <algorithm>
#include <utility>

#include "common/status/status_macros.h"
#include "gpu_worker/engine/segment_claim.h"
#include "gpu_worker/measuring/synthetic/drifting_queries.h"
#include "gpu_worker/measuring/synthetic/synthetic_prefill.h"

namespace retroinfer {
namespace {

absl::StatusOr<std::unique_ptr<SequenceSegments>> MakeSegments(const EngineEnvironment& environment,
                                                               const MemoryPlan& plan,
                                                               const WaveIndexSettings& settings,
                                                               const ExecutorParts& executor) {
  KvMemory& memory = *executor.memory;
  WindowLayers* const windows = executor.windows.get();
  BlockCache& cache = *executor.cache;
  Device& device = *environment.device;
  SegmentStore& store = *environment.store;
  SequenceSegments::Parts parts{.device = &device,
                                .ops = &environment.ops->index(),
                                .stream = environment.compute,
                                .memory = &memory,
                                .cache = &cache,
                                .partial = executor.partial.get()};
  ASSIGN_OR_RETURN(
      parts.builder,
      SegmentBuilder::Create(device, *environment.ops, *environment.background, memory.meta_pool(),
                             {.host = environment.arena, .device = cache.device_arena()}, settings,
                             {.max_open_segments = plan.max_open_segments, .heads = plan.heads}));
  if (windows != nullptr) {
    parts.tails =
        std::make_unique<SegmentTails>(SegmentTails::Parts{.device = &device,
                                                           .stream = environment.compute,
                                                           .windows = windows,
                                                           .host_arena = environment.arena,
                                                           .device_arena = cache.device_arena()});
  }
  // Synthetic tokens are in no prompt that a stretch could read.
  parts.stretches =
      plan.synthetic_tokens > 0 ? Stretches{.least_tokens = 0} : environment.stretches;
  parts.on_built = [&store](const SequenceKv& sequence, size_t segment, int64_t token_begin) {
    store.Commit(sequence.HolderOf(segment), CommitOf(sequence, segment, token_begin));
  };
  return SequenceSegments::Create(settings, std::move(parts));
}

}  // namespace

absl::StatusOr<EngineParts> AssembleEngine(const EngineEnvironment& environment,
                                           const MemoryPlan& plan,
                                           const WaveIndexSettings& settings) {
  Device& device = *environment.device;
  Ops& ops = *environment.ops;
  Stream& compute = *environment.compute;
  ExecutorParts parts{
      .device = &device, .ops = &ops, .stream = &compute, .model = environment.model};
  ASSIGN_OR_RETURN(parts.memory, KvMemory::Create(device, {.geometry = plan.geometry,
                                                           .heads = plan.heads,
                                                           .dense_blocks = plan.dense_blocks,
                                                           .meta_blocks = plan.meta_blocks,
                                                           .max_sequences = plan.max_sequences,
                                                           .max_model_len = plan.max_model_len}));
  const auto num_query_heads = static_cast<int32_t>(environment.model->config().num_query_heads);
  if (plan.geometry.has_window_layers()) {
    ASSIGN_OR_RETURN(parts.windows, WindowLayers::Create(device, ops.attention(), compute,
                                                         {.geometry = plan.geometry,
                                                          .num_rows = plan.max_sequences,
                                                          .max_batch = plan.max_step_rows,
                                                          .num_query_heads = num_query_heads,
                                                          .heads = plan.heads}));
  }
  if (plan.suspended_blocks > 0) {
    ASSIGN_OR_RETURN(parts.suspended,
                     SuspendedKv::Create(device, compute, *parts.memory, plan.suspended_blocks,
                                         parts.windows.get()));
  }
  ASSIGN_OR_RETURN(parts.cache, BlockCache::Create(device, ops.block_cache(), compute,
                                                   {.num_slots = plan.num_slots,
                                                    .num_transient = plan.num_transient_slots,
                                                    .page_bytes = plan.geometry.page_bytes()},
                                                   environment.arena, environment.data_plane));
  if (environment.store->serves_parts()) {
    parts.partial = std::make_unique<PartialSegments>(
        &parts.cache->absent(), &compute, plan.heads.ArenaOf(plan.geometry),
        [store = environment.store](std::vector<PartsOfExtent> wanted,
                                    SegmentStore::PartsCallback done) {
          store->FetchParts(std::move(wanted), std::move(done));
        });
  }
  ASSIGN_OR_RETURN(parts.segments, MakeSegments(environment, plan, settings, parts));
  ASSIGN_OR_RETURN(parts.policies, PolicySet::Create({.device = &device,
                                                      .ops = &ops,
                                                      .stream = &compute,
                                                      .memory = parts.memory.get(),
                                                      .cache = parts.cache.get(),
                                                      .segments = parts.segments.get(),
                                                      .num_query_heads = num_query_heads,
                                                      .max_batch = plan.max_step_rows,
                                                      .max_tokens = plan.max_model_len,
                                                      .observer = environment.observer}));
  if (plan.draft.has_value() && environment.draft_model != nullptr) {
    ASSIGN_OR_RETURN(
        parts.draft_model,
        DraftModel::Create(
            {.device = &device, .ops = &ops, .stream = &compute, .model = environment.draft_model},
            *plan.draft));
  }
  return EngineParts{.executor = std::move(parts),
                     .tokenizer = environment.tokenizer,
                     .store = environment.store,
                     .arena = environment.arena};
}

SyntheticShape SyntheticShapeOf(const ModelConfig& config, const KvGeometry& geometry,
                                int64_t max_tokens, std::optional<double> overlap) {
  return {.geometry = geometry,
          .num_query_heads = static_cast<int32_t>(config.num_query_heads),
          .max_tokens = max_tokens,
          .overlap = overlap};
}

size_t SyntheticBytes(const SyntheticShape& shape, DType activation_dtype, int32_t max_batch) {
  const auto num_decorated = static_cast<size_t>(
      std::count_if(PolicyTable().begin(), PolicyTable().end(),
                    [](const PolicyEntry& entry) { return entry.takes_synthetic_contexts; }));
  return SyntheticContext::Bytes(shape, activation_dtype) +
         num_decorated * DriftingQueries::Bytes(shape, activation_dtype, max_batch);
}

absl::Status AddSyntheticContexts(const EngineEnvironment& environment, const MemoryPlan& plan,
                                  std::optional<double> overlap, ExecutorParts& parts,
                                  const AttentionSettings& attention) {
  Device& device = *environment.device;
  Ops& ops = *environment.ops;
  SyntheticShape shape =
      SyntheticShapeOf(environment.model->config(), plan.geometry, plan.max_model_len, overlap);
  shape.context_tokens = plan.synthetic_tokens;
  shape.retrieval_ratio = attention.retrieval_ratio;
  ASSIGN_OR_RETURN(SyntheticContext context, SyntheticContext::Create(device, ops, shape));
  auto shared = std::make_shared<SyntheticContext>(std::move(context));
  parts.decoration = shared;
  for (const PolicyEntry& entry : PolicyTable()) {
    if (!entry.takes_synthetic_contexts) continue;
    ASSIGN_OR_RETURN(std::unique_ptr<DriftingQueries> drifting,
                     DriftingQueries::Create(device, ops.model(), *environment.compute,
                                             parts.policies.Of(entry.kind), *shared,
                                             plan.geometry.num_layers, plan.max_step_rows));
    auto prefill = std::make_unique<SyntheticPrefill>(*environment.compute, *environment.background,
                                                      *drifting, *shared, plan.synthetic_tokens);
    parts.policies.Decorate(entry.kind, std::move(drifting));
    parts.policies.Decorate(entry.kind, std::move(prefill));
  }
  return absl::OkStatus();
}

}  // namespace retroinfer
