// Invariants:
// * page_slot and slot_page are inverse to each other: page_slot[p] == s iff slot_page[s] == p.
// * A slot is on the free stack iff it holds no page.
// * Every change of the table has an entry in the log, in the order of the changes.
// The table is worked on by one thread, in batch order, so the log has one order; the pages are
// then copied by all threads: those that were missed and are not attended in the arena itself.
#include "gpu_worker/ops/block_cache/cpu/page_lookup.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/block_cache/block_cache_check.h"
#include "gpu_worker/ops/block_cache/cpu/access_log.h"

namespace retroinfer::cpu {
namespace {

// A page of the execution buffer: `skipped` of its tokens come before the `num_tokens` that are
// attended.
struct WantedPage {
  PageId page;
  uint32_t skipped;
  uint32_t num_tokens;
  uint32_t place;  // in its cluster
};

// The pages of one sequence and KV head, chosen ones or those of the clusters, in the order of the
// execution buffer: visit(index, page).
template <typename Visit>
void ForEachPage(const PageLookupArgs& args, int32_t sequence, uint32_t head, Visit visit) {
  const uint32_t per_page = args.pool.geometry.tokens_per_page();
  const uint32_t places_per_page = args.pool.geometry.places_per_page();
  const int64_t row = int64_t{sequence} * args.num_kv_heads + head;
  if (!args.num_chosen.empty()) {
    const ChosenPage* const chosen = args.chosen.device_data() + row * args.max_chosen;
    for (int32_t i = 0; i < args.num_chosen.device_data()[row]; ++i) {
      visit(int64_t{i}, WantedPage{chosen[i].page, 0, chosen[i].num_tokens, chosen[i].place});
    }
    return;
  }
  const int32_t* clusters = args.retrieved.device_data() + row * args.max_retrieved;
  const MetaBlockId* block_ids = args.indexes.device_data()[sequence].block_ids;
  int64_t index = 0;
  for (int32_t i = 0; i < args.num_retrieved.device_data()[row]; ++i) {
    const uint32_t cluster = static_cast<uint32_t>(clusters[i]);
    const MetaEntry& entry = args.pool.Entries(block_ids[cluster / kClustersPerMetaBlock],
                                               args.layer, head)[cluster % kClustersPerMetaBlock];
    const ClusterPlace place(entry.first_place, places_per_page);
    const uint64_t num_pages = place.NumPages(entry.num_tokens, per_page);
    for (uint32_t k = 0; k < num_pages; ++k, ++index) {
      visit(index, WantedPage{place.first_page + k, place.FirstIn(k),
                              place.NumIn(k, entry.num_tokens, per_page), k});
    }
  }
}

// Looks pages up and decides where the missing ones go.
class Lookup {
 public:
  explicit Lookup(const PageLookupArgs& args)
      : args_(args),
        step_(args.cache.control->step),
        log_(args.cache, step_),
        num_free_(*args.cache.num_free),
        is_closed_(args.cache.control->is_closed != 0),
        any_absent_(args.cache.control->any_absent != 0) {}

  // Fills one row of the execution buffer; returns its number of pages.
  int64_t Row(int32_t sequence, uint32_t head) {
    PageRef* refs = args_.pages.device_data() +
                    (int64_t{sequence} * args_.num_kv_heads + head) * args_.max_pages;
    int64_t num_pages = 0;
    const size_t vector_bytes = args_.pool.geometry.page().vector_bytes;
    ForEachPage(args_, sequence, head, [&](int64_t index, const WantedPage& wanted) {
      RI_CHECK(index < args_.max_pages && wanted.page < args_.cache.page_slot.size());
      num_pages = index + 1;
      if (IsAbsent(wanted.page)) {
        Ask(wanted.page, sequence);
        refs[index] = {InArena(wanted.page), 0, PageOrigin(wanted.place, true)};
        return;
      }
      bool is_missed = false;
      const std::byte* const found = Find(wanted.page, is_missed);
      refs[index] = {found + wanted.skipped * vector_bytes, static_cast<int32_t>(wanted.num_tokens),
                     PageOrigin(wanted.place, is_missed)};
    });
    return num_pages;
  }

  void Finish() {
    *args_.cache.num_free = num_free_;
    log_.Publish();
    args_.counters->hits += sums_.hits;
    args_.counters->misses += sums_.misses;
    args_.counters->admissions += sums_.admissions;
    args_.counters->transients += sums_.transients;
  }

  bool any_miss() const { return sums_.misses != 0; }

 private:
  const std::byte* InArena(PageId page) const {
    return args_.cache.arena.device_data() + page * args_.cache.page_bytes;
  }

  // A page in a slot was there.
  bool IsAbsent(PageId page) const {
    if (!any_absent_ || args_.cache.page_slot.device_data()[page] != kNoSlot) return false;
    const AbsentWord& word = args_.cache.absent.words.device_data()[page / 32];
    return (word.absent >> (page % 32) & 1) != 0;
  }

  void Ask(PageId page, int32_t row) {
    const AbsentPagesView& absent = args_.cache.absent;
    absent.rows.device_data()[row] = 1;
    AbsentWord& word = absent.words.device_data()[page / 32];
    const uint32_t bit = 1u << (page % 32);
    if ((word.asked & bit) != 0) return;
    word.asked |= bit;
    const uint32_t place = (*absent.num_asked)++;
    if (place < absent.asked.size()) absent.asked.device_data()[place] = page;
  }

  const std::byte* Find(PageId page, bool& is_missed) {
    const BlockCacheView& cache = args_.cache;
    const SlotId slot = cache.page_slot.device_data()[page];
    if (slot != kNoSlot) {
      ++sums_.hits;
      cache.slot_stamp.device_data()[slot] = step_;
      return cache.slots.device_data() + slot * cache.page_bytes;
    }
    is_missed = true;
    ++sums_.misses;
    // An entry for this page now, and one for the release of it and of every resident page later.
    const uint64_t num_resident = cache.slot_page.size() - num_free_;
    if (!is_closed_ && num_free_ > 0 && log_.HasRoomFor(num_resident + 2)) return Admit(page);
    ++sums_.transients;
    const std::byte* const in_arena = InArena(page);
    if (num_transient_ == cache.transient.size() / cache.page_bytes) return in_arena;
    return cache.transient.device_data() + num_transient_++ * cache.page_bytes;
  }

  const std::byte* Admit(PageId page) {
    const BlockCacheView& cache = args_.cache;
    const SlotId slot = cache.free_slots.device_data()[--num_free_];
    FillSlot(cache, page, slot, step_);
    log_.Append(LogKind::kAdmit, page, slot);
    ++sums_.admissions;
    return cache.slots.device_data() + slot * cache.page_bytes;
  }

  const PageLookupArgs& args_;
  const StepStamp step_;
  AccessLog log_;
  uint32_t num_free_;
  const bool is_closed_;
  const bool any_absent_;
  size_t num_transient_ = 0;
  BlockCacheCounters sums_{};
};

void CopyRow(const PageLookupArgs& args, int32_t sequence, uint32_t head) {
  PageRef* refs =
      args.pages.device_data() + (int64_t{sequence} * args.num_kv_heads + head) * args.max_pages;
  const size_t page_bytes = args.cache.page_bytes;
  const size_t vector_bytes = args.pool.geometry.page().vector_bytes;
  ForEachPage(args, sequence, head, [&](int64_t index, const WantedPage& wanted) {
    const std::byte* const in_arena = args.cache.arena.device_data() + wanted.page * page_bytes;
    // A hit is there, and of an absent page, which has no tokens, there is nothing to copy.
    if (!IsMissed(refs[index].origin) || refs[index].num_tokens == 0) return;
    const std::byte* const found = refs[index].page - wanted.skipped * vector_bytes;
    if (found == in_arena) return;
    std::memcpy(const_cast<std::byte*>(found), in_arena, page_bytes);
  });
}

}  // namespace

absl::Status PageLookup(CpuStream& stream, const PageLookupArgs& args) {
  RETURN_IF_ERROR(CheckPageLookup(args));
  return stream.Launch([args](ThreadPool& pool) {
    Lookup lookup(args);
    for (int32_t sequence = 0; sequence < args.batch; ++sequence) {
      for (int32_t head = 0; head < args.num_kv_heads; ++head) {
        args.num_pages.device_data()[int64_t{sequence} * args.num_kv_heads + head] =
            static_cast<int32_t>(lookup.Row(sequence, static_cast<uint32_t>(head)));
      }
    }
    lookup.Finish();
    if (!lookup.any_miss()) return;
    pool.ParallelFor(int64_t{args.batch} * args.num_kv_heads, [&](int64_t row) {
      CopyRow(args, static_cast<int32_t>(row / args.num_kv_heads),
              static_cast<uint32_t>(row % args.num_kv_heads));
    });
  });
}

}  // namespace retroinfer::cpu
