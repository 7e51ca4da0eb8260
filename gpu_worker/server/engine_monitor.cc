#include "gpu_worker/server/engine_monitor.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/clock/steady_now.h"

namespace retroinfer {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(100);

double Ratio(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

struct CounterField {
  const char* name;
  const char* help;
  uint64_t EngineStats::*field;
};
constexpr CounterField kCounters[] = {
    {"prompt_tokens_total", "Prompt tokens processed", &EngineStats::prompt_tokens},
    {"generation_tokens_total", "Tokens generated", &EngineStats::generation_tokens},
    {"scored_prompt_tokens_total", "Prompt tokens measured for their log-probabilities",
     &EngineStats::scored_prompt_tokens},
    {"scored_tokens_total", "Tokens of continuations measured in decode steps",
     &EngineStats::scored_tokens},
    {"prefix_cache_queries_tokens_total", "Prompt tokens of requests that looked into the cache",
     &EngineStats::prefix_cache_queries_tokens},
    {"prefix_cache_hits_tokens_total", "Prompt tokens found in the cache, not computed",
     &EngineStats::prefix_cache_hits_tokens},
    {"prefix_read_bytes_total", "KV of cached tokens read from the arena for prompts",
     &EngineStats::prefix_bytes_read},
    {"prefix_shared_bytes_total",
     "The same, not read again because prompts that share it were read together",
     &EngineStats::prefix_bytes_shared},
    {"prefill_shared_rows_total",
     "Rows of layers not computed again because prompts that share them were read together",
     &EngineStats::prefill_rows_shared},
    {"decode_steps_total", "Decode steps, of all requests together", &EngineStats::decode_steps},
    {"draft_model_steps_total", "Steps of the draft model, of all requests together",
     &EngineStats::draft_model_steps},
    {"decode_graphs_recorded_total", "Shapes of decode steps recorded, to be launched as a whole",
     &EngineStats::decode_graphs_recorded},
    {"decode_graphs_launched_total", "Decode steps launched as a whole",
     &EngineStats::decode_graphs_launched},
    {"page_hits_total", "Pages that decode steps found in the block cache",
     &EngineStats::page_hits},
    {"page_misses_total", "Pages read from the arena and admitted", &EngineStats::page_misses},
    {"page_transients_total", "Pages read from the arena without a free slot",
     &EngineStats::page_transients},
    {"page_fills_total", "Pages of new segments that went into free slots as they were written",
     &EngineStats::page_fills},
    {"page_evictions_total", "Pages evicted from the block cache", &EngineStats::page_evictions},
    {"page_evictions_kept_total", "Eviction requests refused because the page was used since",
     &EngineStats::evictions_kept},
    {"arena_read_bytes_total", "Bytes read from the arena", &EngineStats::arena_bytes_in},
    {"arena_written_bytes_total", "Bytes written to the arena", &EngineStats::arena_bytes_out},
    {"segments_built_total", "Segments clustered", &EngineStats::segments_built},
    {"segments_late_total",
     "Segments of those that a request had to wait for before its next token",
     &EngineStats::segments_late},
    {"store_reconnects_total", "Times the kv store came back", &EngineStats::store_reconnects},
    {"allocation_failures_total", "Requests that had to wait for arena space",
     &EngineStats::allocation_failures},
    {"preemptions_total", "Times that a request was preempted for others",
     &EngineStats::preemptions},
    {"resumptions_total", "Times that such a request came back", &EngineStats::resumptions},
    {"memory_stalls_total",
     "Times that a request that generates had to wait for device memory for its next token",
     &EngineStats::memory_stalls},
};

struct GaugeField {
  const char* name;
  const char* help;
  int64_t EngineStats::*field;
};
constexpr GaugeField kGauges[] = {
    {"requests_running",
     "Requests that were admitted: they wait for prefill, or are in prefill or "
     "decode",
     &EngineStats::requests_running},
    {"requests_waiting", "Requests in the queue: not admitted", &EngineStats::requests_waiting},
    {"requests_waiting_for_prefill", "Requests that were admitted and whose prefill has not begun",
     &EngineStats::requests_waiting_for_prefill},
    {"requests_suspended", "Requests that were admitted and are suspended, preempted by others",
     &EngineStats::requests_suspended},
    {"requests_stalled", "Requests that generate and wait for device memory for their next token",
     &EngineStats::requests_stalled},
    {"suspended_kv_bytes", "Memory of the host that holds the KV of such requests",
     &EngineStats::suspended_kv_bytes},
    {"dense_blocks_used", "Dense KV blocks (64 tokens) in use", &EngineStats::dense_blocks_used},
    {"dense_blocks", "Dense KV blocks (64 tokens)", &EngineStats::dense_blocks_total},
    {"meta_blocks_used", "Wave index blocks (64 clusters) in use", &EngineStats::meta_blocks_used},
    {"meta_blocks", "Wave index blocks (64 clusters)", &EngineStats::meta_blocks_total},
    {"slots_used", "Block cache slots (one page) in use", &EngineStats::slots_used},
    {"slots", "Block cache slots (one page)", &EngineStats::slots_total},
    {"table_rows_used", "Sequences that hold a row of the block tables",
     &EngineStats::table_rows_used},
};

}  // namespace

std::optional<std::string> StatisticsLine(const EngineStats& before, const EngineStats& now,
                                          absl::Duration elapsed) {
  const uint64_t prompt = now.prompt_tokens - before.prompt_tokens;
  const uint64_t generated = now.generation_tokens - before.generation_tokens;
  const bool idle = now.requests_running == 0 && now.requests_waiting == 0 &&
                    before.requests_running == 0 && before.requests_waiting == 0;
  if (idle && prompt == 0 && generated == 0) return std::nullopt;
  const double seconds = std::max(absl::ToDoubleSeconds(elapsed), 1e-9);
  std::string line = absl::StrFormat(
      "running %d, waiting %d, prompt %.1f tok/s, generation %.1f tok/s, KV memory %.1f%%",
      now.requests_running, now.requests_waiting, static_cast<double>(prompt) / seconds,
      static_cast<double>(generated) / seconds, 100 * KvCacheUsage(now));
  const int64_t hits = static_cast<int64_t>(now.page_hits - before.page_hits);
  const int64_t lookups = hits + static_cast<int64_t>(now.page_misses - before.page_misses) +
                          static_cast<int64_t>(now.page_transients - before.page_transients);
  if (lookups > 0) absl::StrAppendFormat(&line, ", page hits %.1f%%", 100 * Ratio(hits, lookups));
  if (!now.store_attached) line += ", kv store not attached";
  return line;
}

double KvCacheUsage(const EngineStats& stats) {
  return std::max(Ratio(stats.dense_blocks_used, stats.dense_blocks_total),
                  Ratio(stats.meta_blocks_used, stats.meta_blocks_total));
}

class EngineMonitor::Exporter {
 public:
  Exporter(const Engine& engine, common::Metrics& metrics) : engine_(engine), metrics_(metrics) {
    for (const CounterField& field : kCounters) {
      counters_.push_back(&metrics.Counter(field.name, field.help));
    }
    for (const GaugeField& field : kGauges) {
      gauges_.push_back(&metrics.Gauge(field.name, field.help));
    }
    for (size_t i = 0; i < device_memory_.size(); ++i) {
      const std::string_view purpose = MemoryPurposeName(static_cast<MemoryPurpose>(i));
      device_memory_[i] =
          &metrics.Gauge("device_memory_bytes", "Memory allocated on the device, by purpose",
                         {{"purpose", std::string(purpose)}});
    }
    for (size_t i = 0; i < kNumDraftSources; ++i) {
      const std::string source(DraftSourceName(static_cast<DraftSource>(i)));
      accepted_[i] = &metrics.Counter("accepted_draft_tokens_total",
                                      "Drafted tokens that steps have tried and that were drawn: "
                                      "tokens without a step of their own",
                                      {{"source", source}});
      rejected_[i] = &metrics.Counter(
          "rejected_draft_tokens_total",
          "Drafted tokens that steps have tried and that were not drawn", {{"source", source}});
    }
    host_seconds_ = &metrics.Counter(
        "decode_host_seconds_total",
        "Time of the engine's thread in decode steps, without waiting for the device");
    mask_seconds_ = &metrics.Counter("decode_mask_seconds_total",
                                     "Time of the engine's thread for the masks of constraints, "
                                     "while the device is in the forward pass of decode steps");
    busy_seconds_ = &metrics.Counter(
        "engine_busy_seconds_total",
        "Time of the engine's thread, without waiting for the device or for something to do");
    metrics
        .Gauge("requests_waiting_limit",
               "Most live requests, waiting and running; more are refused with QUEUE_FULL")
        .Set(static_cast<double>(engine.limits().max_live_requests));
    oldest_waiting_ = &metrics.Gauge(
        "oldest_waiting_seconds",
        "Age of the request that waits longest, for admission or prefill; 0: none waits");
    since_progress_ = &metrics.Gauge(
        "seconds_since_progress",
        "Since the engine last finished a slice of a prompt or a step; 0 without requests");
    usage_ = &metrics.Gauge("kv_cache_usage_ratio", "Share of the KV memory that requests hold");
    attached_ = &metrics.Gauge("store_attached", "1 while the kv store is attached");
    ready_ = &metrics.Gauge("ready", "1 while requests are served");
    scrape_id_ = metrics.OnScrape([this] { Update(); });
  }
  ~Exporter() { metrics_.RemoveOnScrape(scrape_id_); }

 private:
  void Update() {
    const EngineStats stats = engine_.stats();
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < counters_.size(); ++i) {
      const uint64_t EngineStats::*const field = kCounters[i].field;
      counters_[i]->Increment(static_cast<double>(stats.*field - exported_.*field));
    }
    for (size_t i = 0; i < gauges_.size(); ++i) {
      gauges_[i]->Set(static_cast<double>(stats.*kGauges[i].field));
    }
    for (size_t i = 0; i < device_memory_.size(); ++i) {
      device_memory_[i]->Set(static_cast<double>(stats.device_memory_bytes[i]));
    }
    for (size_t i = 0; i < kNumDraftSources; ++i) {
      accepted_[i]->Increment(
          static_cast<double>(stats.accepted_by_source[i] - exported_.accepted_by_source[i]));
      rejected_[i]->Increment(
          static_cast<double>(stats.rejected_by_source[i] - exported_.rejected_by_source[i]));
    }
    host_seconds_->Increment(stats.decode_host_seconds - exported_.decode_host_seconds);
    mask_seconds_->Increment(stats.decode_mask_seconds - exported_.decode_mask_seconds);
    busy_seconds_->Increment(stats.busy_seconds - exported_.busy_seconds);
    const absl::Time now = common::SteadyNow();
    oldest_waiting_->Set(absl::ToDoubleSeconds(OldestWaiting(stats, now)));
    since_progress_->Set(absl::ToDoubleSeconds(SinceProgress(stats, now)));
    usage_->Set(KvCacheUsage(stats));
    attached_->Set(stats.store_attached ? 1 : 0);
    ready_->Set(stats.ready ? 1 : 0);
    exported_ = stats;
  }

  const Engine& engine_;
  common::Metrics& metrics_;
  std::vector<prometheus::Counter*> counters_;  // in the order of kCounters
  std::vector<prometheus::Gauge*> gauges_;      // in the order of kGauges
  std::array<prometheus::Gauge*, static_cast<size_t>(MemoryPurpose::kCount)> device_memory_;
  std::array<prometheus::Counter*, kNumDraftSources> accepted_, rejected_;
  prometheus::Counter* host_seconds_;
  prometheus::Counter* mask_seconds_;
  prometheus::Counter* busy_seconds_;
  prometheus::Gauge* oldest_waiting_;
  prometheus::Gauge* since_progress_;
  prometheus::Gauge* usage_;
  prometheus::Gauge* attached_;
  prometheus::Gauge* ready_;
  int scrape_id_;
  absl::Mutex mutex_;  // two scrapes may run at once
  EngineStats exported_ ABSL_GUARDED_BY(mutex_);
};

EngineMonitor::EngineMonitor(const Engine& engine, common::Metrics& metrics,
                             absl::Duration interval, std::function<void(bool)> on_ready)
    : engine_(engine),
      interval_(interval),
      on_ready_(std::move(on_ready)),
      exporter_(std::make_unique<Exporter>(engine, metrics)),
      thread_([this] { Run(); }) {}

EngineMonitor::~EngineMonitor() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void EngineMonitor::Run() {
  EngineStats before = engine_.stats();
  absl::Time last_line = common::SteadyNow();
  bool ready = before.ready;
  on_ready_(ready);
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kPollInterval)) return;
    }
    const EngineStats stats = engine_.stats();
    if (stats.ready != ready) on_ready_(ready = stats.ready);
    const absl::Time now = common::SteadyNow();
    if (now - last_line < interval_) continue;
    if (const auto line = StatisticsLine(before, stats, now - last_line)) {
      spdlog::info("{}", *line);
    }
    before = stats;
    last_line = now;
  }
}

}  // namespace retroinfer
