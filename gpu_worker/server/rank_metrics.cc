#include "gpu_worker/server/rank_metrics.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace retroinfer {
namespace {

struct CounterField {
  const char* name;
  const char* help;
  uint64_t RankStats::*field;
};
constexpr CounterField kCounters[] = {
    {"rank_page_hits_total", "Pages that steps of a rank found in its block cache",
     &RankStats::page_hits},
    {"rank_page_misses_total", "Pages that a rank read from the arena and admitted",
     &RankStats::page_misses},
    {"rank_page_transients_total", "Pages that a rank read from the arena without a free slot",
     &RankStats::page_transients},
    {"rank_page_evictions_total", "Pages evicted from the block cache of a rank",
     &RankStats::page_evictions},
    {"rank_arena_read_bytes_total", "Bytes that a rank read from the arena",
     &RankStats::arena_bytes_in},
    {"rank_arena_written_bytes_total", "Bytes that a rank wrote to the arena",
     &RankStats::arena_bytes_out},
};

}  // namespace

RankMetrics::RankMetrics(const RankGroup& ranks, common::Metrics& metrics)
    : ranks_(ranks), metrics_(metrics) {
  std::vector<OfRank> by_rank;
  for (int rank = 1; rank < ranks.num_ranks(); ++rank) {
    const std::map<std::string, std::string> labels = {{"rank", std::to_string(rank)}};
    OfRank& one = by_rank.emplace_back();
    for (const CounterField& field : kCounters) {
      one.counters.push_back(&metrics.Counter(field.name, field.help, labels));
    }
    one.waited =
        &metrics.Counter("rank_wait_seconds_total",
                         "Time that rank 0, done with a command, waited for a rank", labels);
    one.slots_used =
        &metrics.Gauge("rank_slots_used", "Block cache slots of a rank in use", labels);
    one.device_bytes = &metrics.Gauge("rank_device_memory_bytes",
                                      "Memory that a rank has allocated on its device", labels);
  }
  {
    // A scrape holds locks of the metrics before this one: none is taken under it.
    absl::MutexLock lock(&mutex_);
    by_rank_ = std::move(by_rank);
  }
  scrape_id_ = metrics_.OnScrape([this] { Update(); });
}

RankMetrics::~RankMetrics() { metrics_.RemoveOnScrape(scrape_id_); }

void RankMetrics::Update() {
  const std::vector<RankGroup::Report> reports = ranks_.Reports();
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < by_rank_.size(); ++i) {
    OfRank& one = by_rank_[i];
    const RankGroup::Report& now = reports[i];
    for (size_t j = 0; j < one.counters.size(); ++j) {
      const uint64_t RankStats::*const field = kCounters[j].field;
      one.counters[j]->Increment(static_cast<double>(now.stats.*field - one.exported.stats.*field));
    }
    one.waited->Increment(now.waited_seconds - one.exported.waited_seconds);
    one.slots_used->Set(static_cast<double>(now.stats.slots_used));
    one.device_bytes->Set(static_cast<double>(now.stats.device_bytes));
    one.exported = now;
  }
}

}  // namespace retroinfer
