#include "gpu_worker/assembly/engine_plan.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/assembly/engine_assembly.h"
#include "gpu_worker/assembly/model_source.h"
#include "gpu_worker/model/largest_part.h"
#include "gpu_worker/wave_index/retrieval_quality.h"

namespace retroinfer {
namespace {

constexpr int64_t kMinModelLen = 1024;  // what a server must be able to hold at least

// With max_model_len 0 in `options`: the model's length, or the largest half, quarter, ... that
// fits.
absl::StatusOr<MemoryPlan> PlanFor(const ServedEngineOptions& options, const ModelConfig& config,
                                   MemoryPlanInput input) {
  input.max_model_len = options.max_model_len != 0 ? options.max_model_len : config.context_length;
  while (true) {
    absl::StatusOr<MemoryPlan> plan = PlanMemory(input);
    if (plan.ok() || options.max_model_len != 0 || input.max_model_len / 2 < kMinModelLen) {
      return plan;
    }
    input.max_model_len /= 2;
  }
}

// The same with a synthetic context before each request.
absl::StatusOr<MemoryPlan> PlanForSynthetic(const ServedEngineOptions& options,
                                            const ModelConfig& config, MemoryPlanInput input) {
  const int64_t of_request =
      options.max_model_len != 0 ? options.max_model_len : ModelSource::kSyntheticRequestTokens;
  input.synthetic_tokens = options.synthetic_context;
  input.max_model_len = options.synthetic_context + of_request;
  input.synthetic_bytes = SyntheticBytes(
      SyntheticShapeOf(config, input.geometry(), input.max_model_len, options.synthetic_overlap),
      input.backend.activation_dtype, input.max_batch);
  ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(input));
  const PolicyKind policy = options.default_attention.policy;
  const int64_t capacity = plan.capacity_tokens[policy];
  if (capacity < options.synthetic_context + kMinModelLen) {
    return absl::ResourceExhaustedError(
        absl::StrCat("--synthetic-context ", options.synthetic_context, " and a request of ",
                     kMinModelLen, " tokens behind it do not fit: there is room for ", capacity,
                     " tokens with policy ", std::string(PolicyName(policy)),
                     policy == PolicyKind::kWave ? "; use a larger --arena-bytes of the store"
                                                 : "; use a larger --dense-kv-bytes or --memory"));
  }
  return plan;
}

}  // namespace

WaveIndexSettings IndexSettings(const ServedEngineOptions& options, const KvFormat& format) {
  WaveIndexSettings settings;
  const RetrievalShare share = RetrievalFor(options.quality, format);
  settings.radius_weight = share.radius_weight;
  settings.min_retrieved = share.min_retrieved;
  settings.candidate_ratio = share.candidate_ratio;
  settings.min_candidates = share.min_candidates;
  settings.dense_below = options.dense_below;
  if (options.wave_index == "paper") {
    settings.centre_keys = false;
    settings.radius_weight = 0;
  }
  return settings;
}

AttentionSettings DefaultAttention(const ServedEngineOptions& options, const KvFormat& format) {
  AttentionSettings attention = options.default_attention;
  attention.retrieval_ratio =
      options.retrieval_ratio.value_or(RetrievalFor(options.quality, format).ratio);
  if (options.wave_index == "paper") attention.ranking = GroupRanking::kSumOfSoftmax;
  return attention;
}

size_t AvailableBytes(const ComputeBackend& backend, const ServedEngineOptions& options) {
  if (options.memory_bytes == 0) return backend.memory_bytes;
  const size_t most =
      backend.owns_memory ? backend.memory_bytes : backend.device->info().memory_bytes;
  return std::min<size_t>(options.memory_bytes, most);
}

// Covers what the index does to a segment's bytes as well, and the backend: backends round apart.
std::string SegmentFingerprint(const Fingerprint& model, const ModelConfig& config,
                               const ComputeBackend& backend, const WaveIndexSettings& settings,
                               const ServedEngineOptions& options) {
  FingerprintBuilder builder;
  builder.AddFingerprint("model", model);
  builder.AddBytes("backend", std::as_bytes(std::span(backend.device->info().backend)));
  builder.AddInt("kv_dtype", static_cast<int64_t>(backend.kv_format.id));
  builder.AddInt("compute_dtype", static_cast<int64_t>(backend.compute_dtype));
  builder.AddInt("segment_version", kSegmentVersion);
  builder.AddInt("kmeans_rounds", settings.kmeans_rounds);
  builder.AddInt("centre_keys", settings.centre_keys ? 1 : 0);
  if (!config.layer_windows.empty()) {
    builder.AddBytes("layer_windows", std::as_bytes(std::span(config.layer_windows)));
  }
  if (options.synthetic_context != 0)
    builder.AddInt("synthetic_context", options.synthetic_context);
  const Fingerprint fingerprint = builder.Finish();
  return std::string(reinterpret_cast<const char*>(fingerprint.data()), fingerprint.size());
}

TensorParallel ParallelOf(const ServedEngineOptions& options) {
  return {.rank = options.rank, .num_ranks = options.num_ranks};
}

std::string AgreedSettings(const ModelConfig& config, size_t weight_bytes,
                           const ComputeBackend& backend, const WaveIndexSettings& settings,
                           const ServedEngineOptions& options) {
  const std::string segments = SegmentFingerprint({}, config, backend, settings, options);
  FingerprintBuilder builder;
  builder.AddBytes("segments", std::as_bytes(std::span(segments)));
  builder.AddInt("weight_bytes", static_cast<int64_t>(weight_bytes));
  builder.AddInt("family", static_cast<int64_t>(config.family));
  builder.AddInt("layers", static_cast<int64_t>(config.num_layers));
  builder.AddInt("hidden", static_cast<int64_t>(config.hidden_size));
  builder.AddInt("features", static_cast<int64_t>(config.intermediate_size));
  builder.AddInt("query_heads", static_cast<int64_t>(config.num_query_heads));
  builder.AddInt("kv_heads", static_cast<int64_t>(config.num_kv_heads));
  builder.AddInt("head_dim", static_cast<int64_t>(config.head_dim));
  builder.AddInt("vocabulary", static_cast<int64_t>(config.vocab_size));
  builder.AddInt("context", config.context_length);
  const Fingerprint agreed = builder.Finish();
  return std::string(reinterpret_cast<const char*>(agreed.data()), agreed.size());
}

absl::StatusOr<MemoryPlan> PlanEngine(const ServedEngineOptions& options, const ModelConfig& whole,
                                      const ComputeBackend& backend,
                                      const WaveIndexSettings& settings,
                                      const PlannedMemory& memory) {
  KvHeadRange heads;
  ASSIGN_OR_RETURN(const ModelConfig config, LargestPart(whole, ParallelOf(options), &heads));
  const MemoryPlanInput input{.model = config,
                              .kv_format = backend.kv_format,
                              .backend = backend.needs,
                              .index = settings,
                              .weight_bytes = memory.weight_bytes,
                              .max_whole_prompt = options.max_whole_prompt,
                              .max_batch = options.max_batch,
                              .tail_run = options.tail_run,
                              .prefill_rows = PrefillRows(options.num_ranks),
                              .arena_pages = memory.arena_pages,
                              .available_bytes = memory.available_bytes,
                              .owns_memory = backend.owns_memory,
                              .dense_kv_bytes = options.dense_kv_bytes,
                              .block_cache_bytes = options.block_cache_bytes,
                              .preemption = options.preemption == "on",
                              .suspended_kv_bytes = options.suspended_kv_bytes,
                              .heads = heads,
                              .draft = memory.draft};
  RETURN_IF_ERROR(input.geometry().Validate());
  if (options.synthetic_context != 0 && input.geometry().has_window_layers()) {
    return absl::UnimplementedError(
        "--synthetic-context: synthetic tokens are in no ring, so models with window layers do "
        "not take any");
  }
  RETURN_IF_ERROR(backend.ops->CheckKvFormat(input.kv_format));
  return options.synthetic_context == 0 ? PlanFor(options, config, input)
                                        : PlanForSynthetic(options, config, input);
}

}  // namespace retroinfer
