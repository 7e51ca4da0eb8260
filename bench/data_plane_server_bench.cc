// What the store's half of a data plane costs in a step: replaying the worker's log, and choosing
// whom to evict. Processor time of one thread, at the sizes of a server with long contexts.
//
// usage: data_plane_server_bench [--slots 4700000] [--pages 47000000] [--misses 50000]
//          [--uses 500000] [--steps 100]
// --misses and --uses: pages that a step looks up in vain, and finds. Prints one JSON object.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <random>
#include <vector>

#include "bench/support/measure.h"
#include "bench/support/must.h"
#include "kv_store_service/data_plane/data_plane_server.h"
#include "tests/support/data_plane_memory.h"

namespace retroinfer {
namespace {

using bench::Must;

struct Settings {
  uint32_t slots = 4'700'000;
  uint32_t pages = 47'000'000;
  uint32_t misses = 50'000;
  uint32_t uses = 500'000;
  int steps = 100;
};

Settings Parse(int argc, char** argv) {
  Settings settings;
  if (bench::IsSmoke()) {
    settings = {.slots = 4'000, .pages = 40'000, .misses = 40, .uses = 400, .steps = 20};
  }
  CLI::App app;
  app.add_option("--slots", settings.slots)->check(CLI::Range(1'000, 100'000'000));
  app.add_option("--pages", settings.pages)->check(CLI::Range(2'000, 1'000'000'000));
  app.add_option("--misses", settings.misses)->check(CLI::Range(1, 100'000'000));
  app.add_option("--uses", settings.uses)->check(CLI::Range(0, 100'000'000));
  app.add_option("--steps", settings.steps)->check(CLI::Range(1, 1'000'000));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return settings;
}

double ThreadSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A worker whose steps miss and use pages at random, and the store behind it.
class Worker {
 public:
  explicit Worker(const Settings& settings)
      : settings_(settings),
        memory_(settings.slots, DataPlane::LogCapacityFor(settings.slots),
                DataPlane::RequestCapacityFor(settings.slots), settings.pages),
        plane_(memory_.view()),
        server_(memory_.view(), {}),
        slot_of_(settings.pages, kNoSlot),
        page_of_(settings.slots, kNoPage),
        stamps_(settings.slots, 0) {
    for (SlotId slot = settings.slots; slot-- > 0;) free_.push_back(slot);
    while (free_.size() > settings.slots / 8) Admit();
    RunStore();
  }

  nlohmann::json Run() {
    for (int i = 0; i < settings_.steps; ++i) {
      Step();
      RunStore();
    }
    num_short_ = 0;
    const kvstore::DataPlaneStats before = server_.stats();
    std::vector<double> ms;
    for (int i = 0; i < settings_.steps; ++i) {
      Step();
      ms.push_back(1e3 * RunStore());
    }
    const kvstore::DataPlaneStats after = server_.stats();
    double sum = 0;
    for (const double value : ms) sum += value;
    const double steps = settings_.steps;
    std::sort(ms.begin(), ms.end());
    nlohmann::json json = bench::Report("data_plane_server", {.name = "cpu", .backend = "cpu"});
    json["slots"] = settings_.slots;
    json["pages"] = settings_.pages;
    json["missed_per_step"] = settings_.misses;
    const auto per_step = [&](uint64_t from, uint64_t to) {
      return static_cast<double>(to - from) / steps;
    };
    json["entries_per_step"] = per_step(before.entries_replayed, after.entries_replayed);
    json["evicted_per_step"] = per_step(before.evictions_applied, after.evictions_applied);
    json["kept_per_step"] = per_step(before.evictions_kept, after.evictions_kept);
    json["steps_short_of_slots"] = num_short_;
    json["store_ms_mean"] = sum / steps;
    json["store_ms_median"] = ms[ms.size() / 2];
    json["store_ms_max"] = ms.back();
    return json;
  }

 private:
  void Push(LogKind kind, PageId page, SlotId slot) {
    if (!plane_.log().TryPush({static_cast<uint32_t>(kind), page, slot, step_})) {
      bench::Fail("the log is full");
    }
  }

  void Admit() {
    const SlotId slot = free_.back();
    free_.pop_back();
    PageId page = 0;
    do {
      page = static_cast<PageId>(random_() % settings_.pages);
    } while (slot_of_[page] != kNoSlot);
    slot_of_[page] = slot;
    page_of_[slot] = page;
    stamps_[slot] = step_;
    Push(LogKind::kAdmit, page, slot);
  }

  void Step() {
    auto& stamps = plane_.stamp_control();
    if (stamps.published.value != stamps.requested.value) {
      std::copy(stamps_.begin(), stamps_.end(), plane_.stamps().begin());
      stamps.published.value = stamps.requested.value.load();
    }
    Answer();
    plane_.worker_step() = ++step_;
    for (uint32_t i = 0; i < settings_.uses; ++i) stamps_[random_() % settings_.slots] = step_;
    if (free_.size() < settings_.misses) ++num_short_;
    for (uint32_t i = 0; i < settings_.misses && !free_.empty(); ++i) Admit();
  }

  void Answer() {
    std::vector<EvictionRequest> requests(plane_.requests().Depth());
    requests.resize(Must(plane_.requests().Pop(requests)));
    for (const EvictionRequest& request : requests) {
      const bool leaves =
          page_of_[request.slot] == request.page && stamps_[request.slot] == request.stamp_seen;
      Push(leaves ? LogKind::kEvict : LogKind::kKeep, request.page, request.slot);
      if (!leaves) continue;
      page_of_[request.slot] = kNoPage;
      slot_of_[request.page] = kNoSlot;
      free_.push_back(request.slot);
    }
  }

  // Until there is nothing to do. Returns what it took.
  double RunStore() {
    const double begin = ThreadSeconds();
    while (server_.RunOnce()) {
    }
    return ThreadSeconds() - begin;
  }

  const Settings settings_;
  test_support::DataPlaneMemory memory_;
  DataPlane plane_;
  kvstore::DataPlaneServer server_;
  std::vector<SlotId> slot_of_;
  std::vector<PageId> page_of_;
  std::vector<StepStamp> stamps_;
  std::vector<SlotId> free_;
  std::mt19937_64 random_{1};
  StepStamp step_ = 1;
  uint64_t num_short_ = 0;
};

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) {
  retroinfer::Worker worker(retroinfer::Parse(argc, argv));
  retroinfer::bench::Print(worker.Run());
  return 0;
}
