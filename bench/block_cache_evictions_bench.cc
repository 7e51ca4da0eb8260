// What stays in the block cache while pages are reused as in text: the worker's look-ups and upkeep
// and the store's choice, on the CPU, with the times of an 8B shape on a GPU
// (tests/support/timed_block_cache.h), beside a plain LRU over the same look-ups.
//
// usage: block_cache_evictions_bench [--layers 5] [--batch 6] [--context 122880] [--warm-up 300]
//          [--steps 256] [--shares 0.05,0.1,0.2,0.4] [--free-slots-low L] [--free-slots-high H]
//          [--entry-ns N] [--request-ns N] [--slot-ns N]
// Prints one JSON object.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <vector>

#include "bench/support/measure.h"
#include "tests/support/timed_block_cache.h"

namespace retroinfer {
namespace {

using test_support::DrawnPageUse;
using test_support::TimedBlockCache;

struct Settings {
  uint32_t layers = 5;
  uint32_t batch = 6;
  int64_t context = 122'880;
  int64_t warm_up = 300;
  int64_t steps = 256;
  std::vector<double> shares = {0.05, 0.1, 0.2, 0.4};
  TimedBlockCache::Options options;
};

Settings Parse(int argc, char** argv) {
  Settings settings;
  if (bench::IsSmoke()) {
    settings.layers = 1;
    settings.batch = 1;
    settings.context = 4'096;
    settings.warm_up = settings.steps = 8;
    settings.shares = {0.3};
  }
  CLI::App app;
  app.add_option("--layers", settings.layers)->check(CLI::Range(1, 32));
  app.add_option("--batch", settings.batch)->check(CLI::Range(1, 64));
  app.add_option("--context", settings.context)->check(CLI::Range(2'048, 1'000'000));
  app.add_option("--warm-up", settings.warm_up)->check(CLI::Range(0, 1'000'000));
  app.add_option("--steps", settings.steps)->check(CLI::Range(1, 1'000'000));
  app.add_option("--shares", settings.shares)->delimiter(',')->check(CLI::Range(0.001, 1.0));
  app.add_option("--free-slots-low", settings.options.watermarks.low)->check(CLI::Range(0.0, 1.0));
  app.add_option("--free-slots-high", settings.options.watermarks.high)
      ->check(CLI::Range(0.0, 1.0));
  test_support::ModelledTimes& times = settings.options.times;
  app.add_option("--step-ms", times.step_ms);
  app.add_option("--entry-ns", times.entry_ns);
  app.add_option("--request-ns", times.request_ns);
  app.add_option("--slot-ns", times.slot_ns);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return settings;
}

nlohmann::json Run(const Settings& settings, const DrawnPageUse& use, double share) {
  TimedBlockCache::Options options = settings.options;
  options.cache_share = share;
  TimedBlockCache cache(use, options);
  for (int64_t i = 0; i < settings.warm_up; ++i) cache.Step();
  cache.Take();
  for (int64_t i = 0; i < settings.steps; ++i) cache.Step();
  const auto interval = cache.Take();
  const double layers = static_cast<double>(options.times.num_layers) / settings.layers;
  const auto per_step = [&](uint64_t count) { return layers * interval.PerStep(count); };
  return {{"share", share},
          {"slots", layers * cache.num_slots()},
          {"hit_ratio", interval.Share(interval.counters.hits)},
          {"lru_hit_ratio", interval.Share(interval.lru_hits)},
          {"lookups_per_step", per_step(interval.lookups)},
          {"missed_per_step", per_step(interval.counters.misses)},
          {"admitted_per_step", per_step(interval.counters.admissions)},
          {"evicted_per_step", per_step(interval.counters.evictions)},
          {"kept_per_step", per_step(interval.counters.evictions_kept)},
          {"steps_without_free_slots", interval.PerStep(interval.steps_without_free_slots)},
          {"step_ms", layers * interval.model_ms / static_cast<double>(interval.steps)},
          {"store_busy", interval.store_ms / interval.model_ms}};
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) {
  using namespace retroinfer;
  const Settings settings = Parse(argc, argv);
  const test_support::DrawnPageUse use(settings.layers, settings.batch, settings.context);
  nlohmann::json json = bench::Report("block_cache_evictions", {.name = "model", .backend = "cpu"});
  json["batch"] = settings.batch;
  json["context_tokens"] = settings.context;
  for (const double share : settings.shares) json["caches"].push_back(Run(settings, use, share));
  bench::Print(json);
  return 0;
}
