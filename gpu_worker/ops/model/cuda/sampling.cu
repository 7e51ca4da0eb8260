// Two kernels. The first prepares the logits and takes sums of the row's parts, a block each. In
// the second one block has a row: a greedy one is done with what the parts say; a drawn one reads
// the row (vocab * 4 bytes, from L2) a few times more, which bounds it. Rows run beside each other.
//
// No row is sorted. A cut is a *threshold*: an order-preserving integer key and how many of the
// tokens at exactly that key are kept, lowest ids first. Where a cheap bound leaves few candidates,
// as it nearly always does, they are gathered in shared memory first, and their threshold is found
// bit by bit, from registers. That of a whole row is found three bits at a time, for fewer passes:
// each measures (by count or by weight) what is kept for each of the seven possible digits.
//
// All sums are taken in a fixed order, so a row's token is a function of the row.
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/counter_random.h"
#include "gpu_worker/ops/model/cuda/sampling.h"
#include "gpu_worker/ops/model/cuda/sampling_entries.cuh"
#include "gpu_worker/ops/model/cuda/sampling_parts.cuh"
#include "gpu_worker/ops/model/sampling_check.h"

namespace retroinfer::cuda {
namespace {

using namespace sampling;

constexpr uint32_t kAll = ~0u;

// Tokens of keys above `key` are kept, and the first `ties` (by id) of those at it.
struct Threshold {
  uint32_t key = 0;
  uint32_t ties = kAll;
};

// FindKey() of candidates.
template <typename Measure>
__device__ uint32_t FindKeyOfFew(Shared& shared, const Entries& entries, double needed,
                                 const Measure& measure) {
  constexpr int kEach = kMaxCandidates / kSamplingThreads;
  uint32_t keys[kEach];
  float values[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int32_t at = static_cast<int32_t>(threadIdx.x) + i * kSamplingThreads;
    const bool is_entry = at < entries.size;
    const float logit = is_entry ? entries.logits[at] : 0.0f;
    keys[i] = is_entry ? KeyOf(logit) : 0;
    values[i] = is_entry ? measure(logit) : 0.0f;
  }
  uint32_t prefix = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    const uint32_t trial = prefix | bit;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum += keys[i] >= trial ? values[i] : 0.0f;
    if (BlockSum(shared, sum) >= needed) prefix = trial;
  }
  return prefix;
}

// The largest key for which the entries at or above it measure at least `needed`, which is above
// zero; 0 if all of them do not.
template <typename Measure>
__device__ uint32_t FindKey(Shared& shared, const Entries& entries, double needed,
                            const Measure& measure) {
  if (entries.size <= kMaxCandidates) return FindKeyOfFew(shared, entries, needed, measure);
  uint32_t prefix = 0;
  for (int shift = 30; shift >= 0; shift -= 3) {
    float sums[kDigits] = {};
    for (int32_t i = threadIdx.x; i < entries.size; i += kSamplingThreads) {
      const float logit = entries.logits[i];
      const uint32_t key = KeyOf(logit);
      if (key < prefix) continue;
      const uint32_t digit = (key - prefix) >> shift;
      const float value = measure(logit);
#pragma unroll
      for (uint32_t d = 0; d < kDigits; ++d) sums[d] += digit > d ? value : 0.0f;
    }
    double totals[kDigits];
#pragma unroll
    for (int d = 0; d < kDigits; ++d) totals[d] = sums[d];
    BlockSums(shared, totals);
    uint32_t digit = 0;
    while (digit < kDigits && totals[digit] >= needed) ++digit;
    prefix += digit << shift;
  }
  return prefix;
}

// Gathers the entries of the row at or above `lowest`, in order. Returns the row itself if they
// are too many.
__device__ Entries Gather(Shared& shared, const Entries& row, float lowest) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t count = 0;
  ForShare(row, warp, [&](int32_t i, bool valid) {
    count += __popc(__ballot_sync(~0u, valid && row.logits[i] >= lowest));
  });
  __syncthreads();
  if (lane == 0) shared.counts[warp] = count;
  __syncthreads();
  uint32_t first = 0, total = 0;
  for (int w = 0; w < kSamplingWarps; ++w) {
    if (w < warp) first += shared.counts[w];
    total += shared.counts[w];
  }
  if (total > kMaxCandidates || total == 0) return row;
  ForShare(row, warp, [&](int32_t i, bool valid) {
    const bool kept = valid && row.logits[i] >= lowest;
    const uint32_t kept_lanes = __ballot_sync(~0u, kept);
    if (kept) {
      const uint32_t at = first + __popc(kept_lanes & ((1u << lane) - 1));
      shared.candidate_logits[at] = row.logits[i];
      shared.candidate_tokens[at] = row.Token(i);
    }
    first += __popc(kept_lanes);
  });
  __syncthreads();
  return {shared.candidate_logits, shared.candidate_tokens, static_cast<int32_t>(total)};
}

// A value that the `count` largest logits reach: the smallest of the `count` largest maxima of
// threads.
__device__ float LowestOfTop(Shared& shared, const Entries& row, int32_t count) {
  if (count > kSamplingThreads) return -INFINITY;
  float max = -INFINITY;
  for (int32_t i = threadIdx.x; i < row.size; i += kSamplingThreads)
    max = fmaxf(max, row.logits[i]);
  __syncthreads();
  shared.maxima[threadIdx.x] = max;
  __syncthreads();
  const Entries maxima = {shared.maxima, nullptr, kSamplingThreads};
  return ValueOf(FindKey(shared, maxima, count, [](float) { return 1.0f; }));
}

// The threshold that keeps the `k` largest entries; all if there are not more.
__device__ Threshold CutTopK(Shared& shared, const Entries& entries, int32_t k) {
  if (k >= entries.size) return {};
  const uint32_t key = FindKey(shared, entries, k, [](float) { return 1.0f; });
  const float value = ValueOf(key);
  const double above =
      SumOf(shared, entries, [value](float logit) { return logit > value ? 1.0f : 0.0f; });
  return {key, static_cast<uint32_t>(k - above)};
}

// What has a threshold left of the entries, by weight, without the ties at it; and the ties.
struct Kept {
  double above = 0;
  double ties = 0;  // how many there are, at most threshold.ties
};
template <typename Weight>
__device__ Kept Measure(Shared& shared, const Entries& entries, const Threshold& threshold,
                        const Weight& weight) {
  float above = 0, ties = 0;
  for (int32_t i = threadIdx.x; i < entries.size; i += kSamplingThreads) {
    const uint32_t key = KeyOf(entries.logits[i]);
    above += key > threshold.key ? weight(entries.logits[i]) : 0.0f;
    ties += key == threshold.key ? 1.0f : 0.0f;
  }
  double values[2] = {above, ties};
  BlockSums(shared, values);
  return {values[0], min(values[1], static_cast<double>(threshold.ties))};
}

// Keeps the fewest of the largest whose weights reach `top_p` of all that `cut` has left. `total`
// is what that is if `cut` keeps all.
template <typename Weight>
__device__ Threshold CutTopP(Shared& shared, const Entries& entries, const Threshold& cut,
                             float top_p, double total, const Weight& weight) {
  double needed = top_p * total;
  uint32_t key = 0;
  if (cut.ties != kAll) {
    const Kept kept = Measure(shared, entries, cut, weight);
    needed = top_p * (kept.above + kept.ties * weight(ValueOf(cut.key)));
    if (kept.above < needed) key = cut.key;
  }
  if (key == 0) key = FindKey(shared, entries, needed, weight);
  const Kept kept = Measure(shared, entries, {key, kAll}, weight);
  const double each = weight(ValueOf(key));
  double ties = each > 0 ? ceil((needed - kept.above) / each) : kept.ties;
  ties = max(1.0, min(ties, kept.ties));
  if (key == cut.key) ties = min(ties, static_cast<double>(cut.ties));
  return {key, static_cast<uint32_t>(ties)};
}

// Draws one of the entries that the threshold keeps and that weigh at least `min_weight`, in
// order of their ids: the warp whose share holds `uniform` of the sum, then the entry.
template <typename Weight>
__device__ int32_t DrawFrom(Shared& shared, const Entries& entries, const Threshold& threshold,
                            float min_weight, double uniform, const Weight& weight) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto is_tie = [&](int32_t i, bool valid) {
    return __ballot_sync(~0u, valid && KeyOf(entries.logits[i]) == threshold.key);
  };
  uint32_t ties = 0;
  if (threshold.ties != kAll) {
    ForShare(entries, warp, [&](int32_t i, bool valid) { ties += __popc(is_tie(i, valid)); });
  }
  __syncthreads();
  if (lane == 0) shared.counts[warp] = ties;
  __syncthreads();
  uint32_t first_tie = 0;
  for (int w = 0; w < warp; ++w) first_tie += shared.counts[w];
  // Calls visit(i, weight or 0) for the share.
  const auto for_kept = [&](const auto& visit) {
    uint32_t tie = first_tie;
    ForShare(entries, warp, [&](int32_t i, bool valid) {
      const uint32_t lanes = threshold.ties == kAll ? 0 : is_tie(i, valid);
      const uint32_t rank = tie + __popc(lanes & ((1u << lane) - 1));
      tie += __popc(lanes);
      const float logit = valid ? entries.logits[i] : -INFINITY;
      const uint32_t key = KeyOf(logit);
      const bool kept =
          valid && (key > threshold.key || (key == threshold.key && rank < threshold.ties));
      const float w = kept ? weight(logit) : 0.0f;
      visit(i, w >= min_weight ? w : 0.0f);
    });
  };
  float share = 0;
  for_kept([&](int32_t, float w) { share += w; });
  const double sum = WarpSum(share);
  __syncthreads();
  if (lane == 0) shared.sums[warp][0] = sum;
  __syncthreads();
  double total = 0;
  for (int w = 0; w < kSamplingWarps; ++w) total += shared.sums[w][0];
  double left = uniform * total;
  // Where the sum was rounded up, the last warp that has anything.
  int chosen = 0;
  for (int w = 0; w < kSamplingWarps; ++w) {
    const double of_warp = shared.sums[w][0];
    if (of_warp <= 0) continue;
    chosen = w;
    if (left < of_warp) break;
    if (w + 1 < kSamplingWarps) left -= of_warp;
  }
  if (warp == chosen) {
    double before = 0;
    int32_t token = -1, last = -1;
    for_kept([&](int32_t i, float w) {
      double upto = w;
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        const double other = __shfl_up_sync(~0u, upto, lanes);
        if (lane >= lanes) upto += other;
      }
      upto += before;
      const uint32_t possible = __ballot_sync(~0u, w > 0);
      const uint32_t reached = __ballot_sync(~0u, w > 0 && left < upto);
      if (possible != 0) last = __shfl_sync(~0u, i, 31 - __clz(possible));
      if (token < 0 && reached != 0) token = __shfl_sync(~0u, i, __ffs(reached) - 1);
      before = __shfl_sync(~0u, upto, 31);
    });
    if (lane == 0) shared.token = entries.Token(token >= 0 ? token : max(last, 0));
  }
  __syncthreads();
  return shared.token;
}

// `total`: of the weights of all.
__device__ int32_t DrawToken(Shared& shared, const SamplingRow& row, const Entries& all, float max,
                             double total) {
  const auto weight = [&row, max](float logit) { return expf((logit - max) / row.temperature); };
  Entries entries = all;
  Threshold threshold;
  if (row.top_k > 0) {
    entries = Gather(shared, all, LowestOfTop(shared, all, row.top_k));
    threshold = CutTopK(shared, entries, row.top_k);
    if (threshold.ties == kAll) total = SumOf(shared, entries, weight);
  } else if (row.top_p < 1.0f) {
    // What top-p drops sums to at most (1 - top_p) of all weights, so it drops every token of less
    // than that divided by the size of the vocabulary.
    constexpr double kRounding = 0.5;
    const double smallest = kRounding * (1.0 - row.top_p) * total / all.size;
    entries = Gather(shared, all, static_cast<float>(max + log(smallest) * row.temperature));
  }
  if (row.top_p < 1.0f) {
    threshold = CutTopP(shared, entries, threshold, row.top_p, total, weight);
  }
  return DrawFrom(shared, entries, threshold, fminf(row.min_p, 1.0f),
                  UniformAt(row.seed, row.position), weight);
}

// Writes the largest logits' tokens and log-probabilities, largest first.
__device__ void WriteTop(Shared& shared, const Entries& all, int32_t count, double log_sum,
                         int32_t* tokens, float* logprobs) {
  const Entries entries = Gather(shared, all, LowestOfTop(shared, all, count));
  const Threshold threshold = CutTopK(shared, entries, count);
  // One warp goes over them in order of their ids: there are few, nearly always.
  if (threadIdx.x >= 32) return;
  const int32_t lane = static_cast<int32_t>(threadIdx.x);
  uint32_t kept = 0, ties = 0;
  for (int32_t at = 0; at < entries.size; at += 32) {
    const int32_t i = at + lane;
    const bool valid = i < entries.size;
    const uint32_t key = valid ? KeyOf(entries.logits[i]) : 0;
    const uint32_t before = (1u << lane) - 1;
    const uint32_t tie_lanes = __ballot_sync(~0u, valid && key == threshold.key);
    const bool keep =
        valid && (key > threshold.key ||
                  (key == threshold.key && ties + __popc(tie_lanes & before) < threshold.ties));
    const uint32_t kept_lanes = __ballot_sync(~0u, keep);
    if (keep) {
      const uint32_t to = kept + __popc(kept_lanes & before);
      shared.top_logits[to] = entries.logits[i];
      shared.top_tokens[to] = entries.Token(i);
    }
    ties += __popc(tie_lanes);
    kept += __popc(kept_lanes);
  }
  __syncwarp();
  if (lane >= count) return;
  if (lane >= static_cast<int32_t>(kept)) {
    tokens[lane] = -1;
    logprobs[lane] = -INFINITY;
    return;
  }
  const float logit = shared.top_logits[lane];
  int32_t rank = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(kept); ++i) {
    rank += shared.top_logits[i] > logit || (shared.top_logits[i] == logit && i < lane) ? 1 : 0;
  }
  tokens[rank] = shared.top_tokens[lane];
  logprobs[rank] = static_cast<float>(logit - log_sum);
}

// 1 for the token that greedy takes. Every thread gets it.
__device__ int32_t RankOf(Shared& shared, const float* logits, int32_t vocab, int32_t token) {
  const float logit = logits[token];
  uint32_t before = 0;
  for (int32_t i = threadIdx.x; i < vocab; i += kSamplingThreads) {
    before += logits[i] > logit || (logits[i] == logit && i < token) ? 1 : 0;
  }
  before = __reduce_add_sync(~0u, before);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.counts[threadIdx.x / 32] = before;
  __syncthreads();
  uint32_t total = 0;
  for (int w = 0; w < kSamplingWarps; ++w) total += shared.counts[w];
  return static_cast<int32_t>(total) + 1;
}

__global__ void __launch_bounds__(kSamplingThreads) SamplingKernel(const SamplingLaunch launch) {
  extern __shared__ __align__(16) std::byte shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const int64_t i = blockIdx.x;
  const SamplingRow row = launch.rows[i];
  const float* const logits = launch.Logits(i);
  const Entries all = {launch.IsAdjusted(i) ? launch.Adjusted(i) : logits, nullptr, launch.vocab};
  const RowSums sums = MergeParts(launch.parts + i * launch.num_parts, launch.num_parts,
                                  launch.vocab, row.temperature);
  int32_t token = sums.token;
  if (row.forced_token >= 0) {
    token = row.forced_token;
  } else if (row.temperature > 0 && sums.max > -INFINITY) {
    token = DrawToken(shared, row, all, sums.max, sums.weighted);
  }
  const double log_sum = sums.model_max + log(sums.sum);
  if (threadIdx.x == 0) {
    launch.tokens[i] = token;
    launch.logprobs[i] = static_cast<float>(logits[token] - log_sum);
  }
  if (row.wants_rank != 0) {
    const int32_t rank = RankOf(shared, logits, launch.vocab, token);
    if (threadIdx.x == 0) launch.ranks[i] = rank;
  }
  const int32_t count = min(row.num_top_logprobs, kMaxTopLogprobs);
  if (count > 0) {
    WriteTop(shared, {logits, nullptr, launch.vocab}, count, log_sum,
             launch.top_tokens + i * kMaxTopLogprobs, launch.top_logprobs + i * kMaxTopLogprobs);
  }
}

}  // namespace

absl::Status Sampling(CudaStream& stream, const SamplingArgs& args) {
  RETURN_IF_ERROR(CheckSampling(args));
  static_assert(sizeof(Shared) <= 48 * 1024, "more needs to be asked for");
  if (args.logits.rows == 0) return absl::OkStatus();
  static_assert(sizeof(PartSums) <= 32);
  const auto rows = static_cast<unsigned>(args.logits.rows);
  const auto num_parts = static_cast<int32_t>(NumSamplingParts(args.logits.cols));
  const SamplingLaunch launch = {
      .logits = args.logits.data,
      .logits_stride = args.logits.row_stride,
      .adjusted = reinterpret_cast<float*>(args.scratch.device_data() +
                                           SamplingPartBytes(args.logits.rows, args.logits.cols)),
      .vocab = static_cast<int32_t>(args.logits.cols),
      .rows = args.rows.device_data(),
      .biases = args.biases.empty() ? nullptr : args.biases.device_data(),
      .occurrences = args.occurrences.empty() ? nullptr : args.occurrences.device_data(),
      .masks = args.masks.empty() ? nullptr : args.masks.device_data(),
      .tokens = args.tokens.device_data(),
      .logprobs = args.logprobs.device_data(),
      .top_tokens = args.top_tokens.device_data(),
      .top_logprobs = args.top_logprobs.device_data(),
      .ranks = args.ranks.device_data(),
      .parts = reinterpret_cast<PartSums*>(args.scratch.device_data()),
      .num_parts = num_parts};
  PartsKernel<<<dim3(static_cast<unsigned>(num_parts), rows), kPartThreads, 0, stream.get()>>>(
      launch);
  RETURN_IF_ERROR(LaunchStatus("launching the parts of sampling"));
  SamplingKernel<<<rows, kSamplingThreads, sizeof(Shared), stream.get()>>>(launch);
  return LaunchStatus("launching sampling");
}

}  // namespace retroinfer::cuda
