// PageLookup is one kernel, which looks every page up. A block takes one (sequence, KV head); where
// a row retrieves many clusters, several blocks share it and take runs of 1024 of its pages in
// turn. A hit costs no more than its stamp. A miss is attended in the arena. It gets a place in the
// list of misses, and claims its entry of the page table: there, kPending + place is smaller for an
// earlier place and larger than any slot, so the smallest value wins, whatever the order
// (atomicMin), and the claims of one page agree on its owner. Attention waits for no more than
// that.
//
// AdmitPages is two kernels. One block ranks the owners in list order: the first ones get free
// slots, as many as the log has room for. Then one block enters the admissions into the table and
// the log, and the others copy pages, a warp at a time. Bound by the link to the host: kPageBytes
// an admission.
//
// Invariants between two look-ups: as in gpu_worker/ops/block_cache/cpu/page_lookup.cc; no entry of
// the table is pending; LookupState::num_listed is zero.
#include <algorithm>
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/block_cache/block_cache_check.h"
#include "gpu_worker/ops/block_cache/cuda/block_cache_access.cuh"
#include "gpu_worker/ops/block_cache/cuda/page_lookup.h"
#include "gpu_worker/ops/cuda/cuda_kv_format.h"
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/meta_runs.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kFindThreads = 1024;
constexpr int kFindWarps = kFindThreads / 32;
constexpr int64_t kClustersOfPart = 192;  // about the 1024 pages that a block looks up at once
constexpr int64_t kMaxParts = 8;          // of a row
constexpr int kCopyThreads = 512;
constexpr int kCopyBlocks = 16;  // enough for the link to the host, few beside other kernels
constexpr uint32_t kPending = 0x80000000u;
constexpr uint32_t kAllLanes = 0xffffffffu;

struct LookupParams {
  BlockCacheParams cache;
  MetaRuns runs;
  uint32_t layer;
  uint32_t per_page;  // tokens
  int32_t num_kv_heads;
  const MetaIndexView* indexes;
  const int32_t* retrieved;
  const int32_t* num_retrieved;
  int64_t max_retrieved;
  const ChosenPage* chosen;
  const int32_t* num_chosen;
  int64_t max_chosen;
  int64_t max_pages;
  PageRef* pages;
  int32_t* num_pages;
  uint32_t num_parts;  // blocks of a row
};

using Scan = cub::BlockScan<int32_t, kFindThreads>;

// A run of clusters, one for each thread.
struct FindShared {
  Scan::TempStorage scan;
  int32_t end[kFindThreads];  // of the cluster's pages, counted from the run's first
  PageId first_page[kFindThreads];
  uint32_t num_tokens[kFindThreads];
  int32_t warp_misses[kFindWarps];
  uint32_t list_base;
  uint32_t num_hits;
};

__device__ PageRef RefTo(const std::byte* memory, size_t index, uint32_t num_tokens,
                         uint32_t origin) {
  return {memory + index * kPageBytes, static_cast<int32_t>(num_tokens), origin};
}

// Writes a reference in one go.
__device__ void Store(PageRef* place, const PageRef& ref) {
  static_assert(sizeof(PageRef) == sizeof(uint4));
  *reinterpret_cast<uint4*>(place) = *reinterpret_cast<const uint4*>(&ref);
}

// Puts this thread's miss, if it has one, on the list. All threads of the block take part.
__device__ void ListMiss(const LookupParams& params, bool is_miss, PageId page, uint32_t ref,
                         FindShared& shared) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t misses = __ballot_sync(kAllLanes, is_miss);
  if (lane == 0) shared.warp_misses[warp] = __popc(misses);
  __syncthreads();
  const int32_t of_warp = shared.warp_misses[lane];
  const int32_t before = __reduce_add_sync(kAllLanes, lane < warp ? of_warp : 0);
  const int32_t all = __reduce_add_sync(kAllLanes, of_warp);
  if (threadIdx.x == 0) {
    shared.list_base = atomicAdd(&params.cache.lookup->num_listed, static_cast<uint32_t>(all));
  }
  __syncthreads();
  const uint32_t place = shared.list_base + static_cast<uint32_t>(before) +
                         static_cast<uint32_t>(__popc(misses & ((1u << lane) - 1)));
  if (!is_miss || place >= params.cache.max_misses) return;
  params.cache.misses[place].page = page;
  params.cache.misses[place].ref = ref;
  atomicMin(params.cache.page_slot + page, kPending | place);
}

// Looks up a page, for place `ref` of the execution buffer. Whether it is missed.
__device__ bool LookUp(const LookupParams& params, const ChosenPage& page, int64_t ref,
                       StepStamp step) {
  const BlockCacheParams& cache = params.cache;
  // As the CPU's RI_CHECK: an index that leads out of the arena ends the process.
  if (page.page >= cache.num_arena_pages) __trap();
  const SlotId slot = __ldcg(cache.page_slot + page.page);
  const bool is_miss = slot >= kPending;
  const uint32_t origin = PageOrigin(page.place, is_miss);
  if (is_miss) {
    Store(params.pages + ref, RefTo(cache.arena, page.page, page.num_tokens, origin));
  } else {
    Store(params.pages + ref, RefTo(cache.slots, slot, page.num_tokens, origin));
    cache.slot_stamp[slot] = step;
  }
  return is_miss;
}

// Looks up this part's share of the pages of the clusters in `shared`, `num_pages` in all; `first`
// of the row's come before them. Returns this thread's hits.
__device__ uint32_t FindPages(const LookupParams& params, int64_t row, int64_t first,
                              int32_t num_pages, int32_t num_clusters, StepStamp step,
                              FindShared& shared) {
  const auto part = static_cast<int32_t>(blockIdx.x % params.num_parts);
  const int32_t stride = static_cast<int32_t>(params.num_parts) * kFindThreads;
  uint32_t num_hits = 0;
  for (int32_t base = part * kFindThreads; base < num_pages; base += stride) {
    const int32_t index = base + static_cast<int32_t>(threadIdx.x);
    bool is_miss = false;
    PageId page = 0;
    const int64_t ref = row * params.max_pages + first + index;
    if (index < num_pages) {
      int32_t low = 0, high = num_clusters - 1;  // the cluster that holds the page
      while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (shared.end[middle] > index) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      const auto in_cluster = static_cast<uint32_t>(index - (low == 0 ? 0 : shared.end[low - 1]));
      page = shared.first_page[low] + in_cluster;
      const uint32_t tokens =
          min(params.per_page, shared.num_tokens[low] - in_cluster * params.per_page);
      if (first + index >= params.max_pages) __trap();
      is_miss =
          LookUp(params, {page, static_cast<uint16_t>(tokens), static_cast<uint16_t>(in_cluster)},
                 ref, step);
      num_hits += is_miss ? 0 : 1;
    }
    if (__syncthreads_or(is_miss ? 1 : 0) != 0) {
      ListMiss(params, is_miss, page, static_cast<uint32_t>(ref), shared);
    }
  }
  return num_hits;
}

// Adds to a sum that nobody waits for.
__device__ void Count(uint64_t& sum, uint64_t more) {
  atomicAdd(reinterpret_cast<unsigned long long*>(&sum), static_cast<unsigned long long>(more));
}

// Counts the hits of this block and, once a row, its pages.
__device__ void EndRow(const LookupParams& params, int64_t row, uint32_t num_hits,
                       int32_t num_pages, FindShared& shared) {
  num_hits = __reduce_add_sync(kAllLanes, num_hits);
  __syncthreads();
  if (threadIdx.x % 32 == 0 && num_hits != 0) atomicAdd(&shared.num_hits, num_hits);
  __syncthreads();
  if (threadIdx.x != 0) return;
  Count(params.cache.counters->hits, shared.num_hits);
  if (blockIdx.x % params.num_parts == 0) params.num_pages[row] = num_pages;
}

// grid: [batch * kv_heads * num_parts]
__global__ void __launch_bounds__(kFindThreads, 1) FindRow(const LookupParams params) {
  __shared__ FindShared shared;
  AllowNextKernel();
  const int64_t row = blockIdx.x / params.num_parts;
  const auto head = static_cast<uint32_t>(row % params.num_kv_heads);
  if (threadIdx.x == 0) shared.num_hits = 0;
  const StepStamp step = params.cache.control->step;
  const auto num_clusters =
      static_cast<int32_t>(min(int64_t{params.num_retrieved[row]}, params.max_retrieved));
  const int32_t* clusters = params.retrieved + row * params.max_retrieved;
  const MetaBlockId* block_ids = params.indexes[row / params.num_kv_heads].block_ids;
  int64_t num_pages = 0;
  uint32_t num_hits = 0;
  for (int32_t base = 0; base < num_clusters; base += kFindThreads) {
    const int32_t index = base + static_cast<int32_t>(threadIdx.x);
    MetaEntry entry{};
    if (index < num_clusters) {
      const auto cluster = static_cast<uint32_t>(clusters[index]);
      entry = params.runs.Entries(block_ids[cluster / kClustersPerMetaBlock], params.layer,
                                  head)[cluster % kClustersPerMetaBlock];
    }
    const auto count =
        static_cast<int32_t>((entry.num_tokens + params.per_page - 1) / params.per_page);
    int32_t end = 0, all = 0;
    Scan(shared.scan).InclusiveSum(count, end, all);
    shared.end[threadIdx.x] = end;
    shared.first_page[threadIdx.x] = entry.first_page;
    shared.num_tokens[threadIdx.x] = entry.num_tokens;
    __syncthreads();
    num_hits += FindPages(params, row, num_pages, all, min(num_clusters - base, kFindThreads), step,
                          shared);
    num_pages += all;
    __syncthreads();
  }
  EndRow(params, row, num_hits, static_cast<int32_t>(num_pages), shared);
}

// FindRow where pages were chosen. The same grid.
__global__ void __launch_bounds__(kFindThreads, 1) FindChosen(const LookupParams params) {
  __shared__ FindShared shared;
  AllowNextKernel();
  const int64_t row = blockIdx.x / params.num_parts;
  if (threadIdx.x == 0) shared.num_hits = 0;
  const StepStamp step = params.cache.control->step;
  const auto num_pages =
      static_cast<int32_t>(min(int64_t{params.num_chosen[row]}, params.max_chosen));
  const ChosenPage* const chosen = params.chosen + row * params.max_chosen;
  const auto part = static_cast<int32_t>(blockIdx.x % params.num_parts);
  const auto stride = static_cast<int32_t>(params.num_parts) * kFindThreads;
  uint32_t num_hits = 0;
  for (int32_t base = part * kFindThreads; base < num_pages; base += stride) {
    const int32_t index = base + static_cast<int32_t>(threadIdx.x);
    const int64_t ref = row * params.max_pages + index;
    ChosenPage page{};
    bool is_miss = false;
    if (index < num_pages) {
      page = chosen[index];
      is_miss = LookUp(params, page, ref, step);
      num_hits += is_miss ? 0 : 1;
    }
    if (__syncthreads_or(is_miss ? 1 : 0) != 0) {
      ListMiss(params, is_miss, page.page, static_cast<uint32_t>(ref), shared);
    }
  }
  EndRow(params, row, num_hits, num_pages, shared);
}

// Admissions that the free slots and the log allow: an entry for each page now, and one for the
// release of it and of every resident page later.
__device__ uint32_t Admissible(const BlockCacheParams& cache, uint64_t num_free, uint64_t room) {
  if (cache.control->is_closed != 0 || num_free == 0) return 0;
  const uint64_t need = cache.num_slots - num_free + 2;
  return room < need ? 0 : static_cast<uint32_t>(min(num_free, (room - need) / 2 + 1));
}

// Ranks the owners and keeps the accounts. One block.
__global__ void __launch_bounds__(kFindThreads, 1) RankOwners(const BlockCacheParams cache) {
  __shared__ Scan::TempStorage scan;
  __shared__ uint32_t num_shared_hits;
  LookupState& state = *cache.lookup;
  const uint32_t num_listed = state.num_listed;
  const uint32_t num_misses = min(num_listed, cache.max_misses);
  if (threadIdx.x == 0) num_shared_hits = 0;
  const LogPlace log = FindLogPlace(cache);  // a barrier, too
  const uint32_t num_free = *cache.num_free;
  const uint32_t num_admissible = Admissible(cache, num_free, log.room);
  uint32_t num_owners = 0;
  for (uint32_t base = 0; base < num_misses; base += kFindThreads) {
    const uint32_t place = base + threadIdx.x;
    PageMiss miss{};
    if (place < num_misses) {
      miss = cache.misses[place];
      miss.owner = cache.page_slot[miss.page] & ~kPending;
    }
    const bool is_owner = place < num_misses && miss.owner == place;
    int32_t before = 0, all = 0;
    Scan(scan).ExclusiveSum(is_owner ? 1 : 0, before, all);
    if (place < num_misses) {
      cache.misses[place].owner = miss.owner;
      if (is_owner) cache.misses[place].rank = num_owners + static_cast<uint32_t>(before);
    }
    num_owners += static_cast<uint32_t>(all);
    __syncthreads();  // ranks of this round are there
    // A page that another miss admits is a hit.
    if (place < num_misses && !is_owner && cache.misses[miss.owner].rank < num_admissible) {
      atomicAdd(&num_shared_hits, 1u);
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const uint32_t num_admitted = min(num_admissible, num_owners);
  state.num_listed = 0;
  state.num_misses = num_misses;
  state.num_admitted = num_admitted;
  state.num_free = num_free;
  state.log_head = log.head;
  if (num_misses == 0) return;
  if (num_admitted != 0) *cache.num_free = num_free - num_admitted;
  const uint32_t read = num_listed - num_shared_hits;
  Count(cache.counters->hits, num_shared_hits);
  Count(cache.counters->misses, read);
  Count(cache.counters->admissions, num_admitted);
  Count(cache.counters->transients, read - num_admitted);
}

// The slot that the owner with `rank` < num_admitted gets.
__device__ SlotId SlotOf(const BlockCacheParams& cache, const LookupState& state, uint32_t rank) {
  return cache.free_slots[state.num_free - 1 - rank];
}

// Enters the admissions into the table and the log, and takes back the other claims.
__device__ void Admit(const BlockCacheParams& cache, const LookupState& state) {
  const StepStamp step = cache.control->step;
  for (uint32_t place = threadIdx.x; place < state.num_misses; place += kCopyThreads) {
    const PageMiss miss = cache.misses[place];
    if (miss.owner != place) continue;
    if (miss.rank >= state.num_admitted) {
      cache.page_slot[miss.page] = kNoSlot;
      continue;
    }
    const SlotId slot = SlotOf(cache, state, miss.rank);
    cache.page_slot[miss.page] = slot;
    cache.slot_page[slot] = miss.page;
    cache.slot_stamp[slot] = step;
    WriteLogEntry(cache, state.log_head + miss.rank, LogKind::kAdmit, miss.page, slot, step);
  }
  if (state.num_admitted != 0) PublishLog(cache, state.log_head + state.num_admitted);
}

// grid: [1 + kCopyBlocks]
__global__ void __launch_bounds__(kCopyThreads) AdmitAndCopy(const BlockCacheParams cache) {
  constexpr int kWords = kPageBytes / sizeof(uint4) / 32;  // of a lane
  const LookupState state = *cache.lookup;
  if (blockIdx.x == 0) {
    Admit(cache, state);
    return;
  }
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t num_warps = (gridDim.x - 1) * (kCopyThreads / 32);
  if (state.num_admitted == 0) return;
  // Neighbours in the list go to different blocks.
  for (uint32_t place = threadIdx.x / 32 * (gridDim.x - 1) + blockIdx.x - 1;
       place < state.num_misses; place += num_warps) {
    const PageMiss miss = cache.misses[place];
    if (miss.owner != place || miss.rank >= state.num_admitted) continue;
    std::byte* const slot = cache.slots + size_t{SlotOf(cache, state, miss.rank)} * kPageBytes;
    const auto* from = reinterpret_cast<const uint4*>(cache.arena + size_t{miss.page} * kPageBytes);
    uint4 words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = from[lane + 32 * i];
#pragma unroll
    for (int i = 0; i < kWords; ++i) reinterpret_cast<uint4*>(slot)[lane + 32 * i] = words[i];
  }
}

absl::Status CheckWorkingMemory(const BlockCacheView& cache, const char* op) {
  return CheckArg(
      !cache.misses.empty() && cache.misses.size() < kPending && cache.lookup != nullptr, op,
      "needs working memory for misses");
}

}  // namespace

absl::Status PageLookup(CudaStream& stream, const PageLookupArgs& args) {
  constexpr char kOp[] = "page_lookup";
  RETURN_IF_ERROR(CheckPageLookup(args));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  RETURN_IF_ERROR(CheckWorkingMemory(args.cache, kOp));
  const int64_t rows = int64_t{args.batch} * args.num_kv_heads;
  RETURN_IF_ERROR(CheckArg(rows * args.max_pages <= int64_t{UINT32_MAX}, kOp,
                           "needs an execution buffer of less than 2^32 pages"));
  if (rows == 0) return absl::OkStatus();
  const bool is_chosen = !args.num_chosen.empty();
  const int64_t wanted_parts =
      is_chosen ? args.max_chosen / kFindThreads : args.max_retrieved / kClustersOfPart;
  const auto num_parts = static_cast<uint32_t>(std::clamp(wanted_parts, int64_t{1}, kMaxParts));
  const LookupParams params{
      .cache = BlockCacheParams(args.cache, args.counters),
      .runs = MetaRuns(args.pool),
      .layer = args.layer,
      .per_page = args.pool.geometry.tokens_per_page(),
      .num_kv_heads = args.num_kv_heads,
      .indexes = args.indexes.device_data(),
      .retrieved = args.retrieved.device_data(),
      .num_retrieved = args.num_retrieved.device_data(),
      .max_retrieved = args.max_retrieved,
      .chosen = args.chosen.device_data(),
      .num_chosen = args.num_chosen.device_data(),
      .max_chosen = args.max_chosen,
      .max_pages = args.max_pages,
      .pages = args.pages.device_data(),
      .num_pages = args.num_pages.device_data(),
      .num_parts = num_parts,
  };
  const auto find = is_chosen ? FindChosen : FindRow;
  find<<<static_cast<uint32_t>(rows) * num_parts, kFindThreads, 0, stream.get()>>>(params);
  return CudaStatus(cudaGetLastError(), kOp);
}

absl::Status AdmitPages(CudaStream& stream, const AdmitPagesArgs& args) {
  constexpr char kOp[] = "admit_pages";
  RETURN_IF_ERROR(CheckAdmitPages(args));
  RETURN_IF_ERROR(CheckWorkingMemory(args.cache, kOp));
  const BlockCacheParams cache(args.cache, args.counters);
  RankOwners<<<1, kFindThreads, 0, stream.get()>>>(cache);
  RETURN_IF_ERROR(CudaStatus(cudaGetLastError(), kOp));
  AdmitAndCopy<<<1 + kCopyBlocks, kCopyThreads, 0, stream.get()>>>(cache);
  return CudaStatus(cudaGetLastError(), kOp);
}

}  // namespace retroinfer::cuda
