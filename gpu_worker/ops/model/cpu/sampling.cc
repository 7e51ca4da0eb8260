#include "gpu_worker/ops/model/cpu/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/thread_scratch.h"
#include "gpu_worker/ops/model/counter_random.h"
#include "gpu_worker/ops/model/sampling_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/model/cpu/sampling.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
//
#include "gpu_worker/ops/cpu/vector_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

float MaxLogit(const float* logits, size_t size) { return MaxOf(logits, size); }

// Sum of exp(factor * (x_i - max)).
double SumOfExp(const float* x, size_t size, float max, float factor) {
  constexpr size_t kBlock = 4096;  // f32 sums stay short, so that their error does
  const FloatTag d;
  const hn::CappedTag<float, 1> d1;
  const size_t lanes = hn::Lanes(d);
  double total = 0;
  size_t i = 0;
  while (i + lanes <= size) {
    const size_t end = std::min(size, i + kBlock);
    auto sum = hn::Zero(d);
    for (; i + lanes <= end; i += lanes) {
      const auto shifted = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, max));
      sum = hn::Add(sum, ExpOf(d, hn::Mul(shifted, hn::Set(d, factor))));
    }
    total += hn::GetLane(hn::SumOfLanes(d, sum));
  }
  for (; i < size; ++i) total += hn::GetLane(ExpOf(d1, hn::Set(d1, (x[i] - max) * factor)));
  return total;
}

}  // namespace
}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {

HWY_EXPORT(MaxLogit);
HWY_EXPORT(SumOfExp);

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// A token that may be drawn.
struct Candidate {
  float logit;
  int32_t token;
};
static_assert(sizeof(Candidate) <= 16, "SamplingArgs promises 16 bytes for each token");

// Larger logits first, then lower ids: a total order, so that every cut is well defined.
bool ComesFirst(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

void ApplyBiases(std::span<const SamplingBias> biases, std::span<float> logits) {
  for (const SamplingBias& bias : biases) {
    if (bias.token < 0 || static_cast<size_t>(bias.token) >= logits.size()) continue;
    float& logit = logits[static_cast<size_t>(bias.token)];
    // A ban holds for a logit of plus infinity, too.
    logit = bias.bias == kMinusInfinity ? kMinusInfinity : logit + bias.bias;
  }
}

uint32_t CountAhead(const SamplingRow& row, size_t token) {
  uint32_t count = 0;
  for (int32_t k = 0; k < row.num_ahead; ++k) count += static_cast<size_t>(row.ahead[k]) == token;
  return count;
}

void ApplyPenalties(const SamplingRow& row, const uint32_t* occurrences, std::span<float> logits) {
  if (occurrences == nullptr) return;
  constexpr uint32_t kInPrompt = 0x80000000u;
  for (size_t i = 0; i < logits.size(); ++i) {
    const uint32_t seen = occurrences[i] + CountAhead(row, i);
    if (seen == 0) continue;
    float& logit = logits[i];
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    const uint32_t generated = seen & ~kInPrompt;
    if (generated > 0) {
      logit -= row.frequency_penalty * static_cast<float>(generated) + row.presence_penalty;
    }
    logit = std::min(logit, std::numeric_limits<float>::max());  // divided by next to nothing
  }
}

void ApplyMask(const uint32_t* mask, std::span<float> logits) {
  if (mask == nullptr) return;
  for (size_t i = 0; i < logits.size(); ++i) {
    if ((mask[i / 32] >> (i % 32) & 1) == 0) logits[i] = kMinusInfinity;
  }
}

int32_t FirstWith(std::span<const float> logits, float value) {
  const auto found = std::find(logits.begin(), logits.end(), value);
  return found == logits.end() ? 0 : static_cast<int32_t>(found - logits.begin());
}

// Draws a token of one row.
class Draw {
 public:
  // `candidates` has room for the whole vocabulary.
  Draw(const SamplingRow& row, std::span<const float> logits, float max, Candidate* candidates)
      : row_(row), logits_(logits), max_(max), all_(candidates, logits.size()) {}

  int32_t Token() {
    if (row_.top_k == 0 && row_.top_p >= 1.0f && row_.min_p <= 0.0f) return TokenOfAll();
    CollectCandidates();
    CutTopK();
    CutTopP();
    CutMinP();
    const std::span<const Candidate> kept = all_.first(kept_);
    double left = UniformAt(row_.seed, row_.position) * SumOfWeights(kept_);
    for (const Candidate& candidate : kept) {
      const double weight = Weight(candidate.logit);
      if (left < weight) return candidate.token;
      left -= weight;
    }
    return kept.front().token;  // The sum was rounded up.
  }

 private:
  // Relative to the largest; 0 for a banned token.
  double Weight(float logit) const {
    return std::exp(static_cast<double>(logit - max_) / row_.temperature);
  }
  double SumOfAllWeights(std::span<const float> logits) const {
    return HWY_DYNAMIC_DISPATCH(SumOfExp)(logits.data(), logits.size(), max_,
                                          1.0f / row_.temperature);
  }
  // Without any cut: finds the block of the vocabulary, then the token in it.
  int32_t TokenOfAll() const {
    constexpr size_t kBlock = 1024;
    double left = UniformAt(row_.seed, row_.position) * SumOfAllWeights(logits_);
    size_t last_possible = 0;
    for (size_t first = 0; first < logits_.size(); first += kBlock) {
      const std::span<const float> block =
          logits_.subspan(first, std::min(kBlock, logits_.size() - first));
      const double sum = SumOfAllWeights(block);
      if (left >= sum) {
        left -= sum;
        if (sum > 0) last_possible = first;
        continue;
      }
      for (size_t i = 0; i < block.size(); ++i) {
        const double weight = Weight(block[i]);
        if (weight > 0) last_possible = first + i;
        if (left < weight) return static_cast<int32_t>(first + i);
        left -= weight;
      }
    }
    return static_cast<int32_t>(last_possible);  // The sum was rounded up.
  }
  // All tokens but those that no cut would leave: what top-p drops sums to at most (1 - top_p) of
  // all weights, so it drops every token of less than that divided by the size of the vocabulary.
  void CollectCandidates() {
    double smallest = 0;
    if (row_.top_k == 0 && row_.top_p < 1.0f) {
      constexpr double kRounding = 0.5;
      smallest = kRounding * (1.0 - row_.top_p) * SumOfAllWeights(logits_) /
                 static_cast<double>(logits_.size());
    }
    const auto lowest = static_cast<float>(
        smallest > 0 ? max_ + std::log(smallest) * row_.temperature : kMinusInfinity);
    for (size_t i = 0; i < logits_.size(); ++i) {
      if (logits_[i] >= lowest && logits_[i] > kMinusInfinity) {
        all_[kept_++] = {logits_[i], static_cast<int32_t>(i)};
      }
    }
  }
  double SumOfWeights(size_t count) const {
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sum += Weight(all_[i].logit);
    return sum;
  }
  // Makes the first `count` of the kept candidates the largest ones, in order.
  void SortFirst(size_t count) {
    const auto first = all_.begin();
    const auto middle = first + static_cast<std::ptrdiff_t>(count);
    const auto end = first + static_cast<std::ptrdiff_t>(kept_);
    if (middle != end) std::nth_element(first, middle, end, ComesFirst);
    std::sort(first, middle, ComesFirst);
  }
  void CutTopK() {
    const auto k = static_cast<size_t>(row_.top_k);
    if (k == 0 || k >= kept_) return;
    SortFirst(k);
    kept_ = k;
  }
  // Keeps the fewest of the largest whose weights reach top_p of the sum.
  void CutTopP() {
    if (row_.top_p >= 1.0f) return;
    const double total = row_.top_k == 0 ? SumOfAllWeights(logits_) : SumOfWeights(kept_);
    const double needed = row_.top_p * total;
    for (size_t sorted = std::min<size_t>(kept_, 256);; sorted = std::min(kept_, sorted * 8)) {
      SortFirst(sorted);
      double sum = 0;
      for (size_t i = 0; i < sorted; ++i) {
        sum += Weight(all_[i].logit);
        if (sum >= needed) {
          kept_ = i + 1;
          return;
        }
      }
      if (sorted == kept_) return;
    }
  }
  void CutMinP() {
    if (row_.min_p <= 0.0f) return;
    size_t kept = 0;
    for (size_t i = 0; i < kept_; ++i) {
      if (Weight(all_[i].logit) >= row_.min_p) all_[kept++] = all_[i];
    }
    kept_ = std::max<size_t>(kept, 1);
  }

  const SamplingRow& row_;
  const std::span<const float> logits_;
  const float max_;
  const std::span<Candidate> all_;
  size_t kept_ = 0;  // leading candidates that are still in
};

// Writes the largest logits' tokens and log-probabilities.
void WriteTop(std::span<const float> logits, int32_t count, double log_sum, Candidate* candidates,
              int32_t* tokens, float* logprobs) {
  const std::span<Candidate> all(candidates, logits.size());
  for (size_t i = 0; i < logits.size(); ++i) all[i] = {logits[i], static_cast<int32_t>(i)};
  const auto sorted =
      static_cast<std::ptrdiff_t>(std::min(static_cast<size_t>(count), logits.size()));
  std::partial_sort(all.begin(), all.begin() + sorted, all.end(), ComesFirst);
  for (int32_t i = 0; i < count; ++i) {
    const bool exists = i < sorted;
    tokens[i] = exists ? all[static_cast<size_t>(i)].token : -1;
    logprobs[i] =
        exists ? static_cast<float>(all[static_cast<size_t>(i)].logit - log_sum) : kMinusInfinity;
  }
}

// The logits that row `i` is drawn from: the model's own where nothing changes them.
std::span<const float> AdjustedLogits(const SamplingArgs& args, int64_t i,
                                      std::span<const float> logits) {
  const SamplingRow& row = args.rows.device_data()[i];
  const uint32_t* const occurrences =
      args.occurrences.empty() ? nullptr : args.occurrences.device_data()[i];
  const uint32_t* const mask = args.masks.empty() ? nullptr : args.masks.device_data()[i];
  if (row.num_biases == 0 && occurrences == nullptr && mask == nullptr) return logits;
  const size_t parts = SamplingPartBytes(args.logits.rows, args.logits.cols);
  auto* const memory = reinterpret_cast<float*>(args.scratch.device_data() + parts);
  const std::span<float> adjusted(memory + static_cast<size_t>(i) * logits.size(), logits.size());
  std::copy(logits.begin(), logits.end(), adjusted.begin());
  if (row.num_biases > 0) {
    ApplyBiases({args.biases.device_data()[i], static_cast<size_t>(row.num_biases)}, adjusted);
  }
  ApplyPenalties(row, occurrences, adjusted);
  ApplyMask(mask, adjusted);
  return adjusted;
}

// 1 for the token that greedy takes.
int32_t RankOf(std::span<const float> logits, int32_t token) {
  const auto at = static_cast<size_t>(token);
  const float logit = std::isnan(logits[at]) ? kMinusInfinity : logits[at];
  int32_t before = 0;
  for (size_t i = 0; i < at; ++i) before += logits[i] >= logit ? 1 : 0;
  for (size_t i = at + 1; i < logits.size(); ++i) before += logits[i] > logit ? 1 : 0;
  return before + 1;
}

void SampleRow(const SamplingArgs& args, int64_t i) {
  const SamplingRow& row = args.rows.device_data()[i];
  const std::span<const float> logits(reinterpret_cast<const float*>(args.logits.Rows(i, 1).data),
                                      static_cast<size_t>(args.logits.cols));
  const std::span<const float> adjusted = AdjustedLogits(args, i, logits);
  auto* candidates = reinterpret_cast<Candidate*>(ThreadScratch(logits.size() * sizeof(Candidate)));
  const float best = HWY_DYNAMIC_DISPATCH(MaxLogit)(adjusted.data(), adjusted.size());
  int32_t token = 0;
  if (row.forced_token >= 0) {
    token = row.forced_token;
  } else if (row.temperature > 0 && best > kMinusInfinity) {
    token = Draw(row, adjusted, best, candidates).Token();
  } else {
    token = FirstWith(adjusted, best);
  }
  args.tokens.device_data()[i] = token;
  const float max = adjusted.data() == logits.data()
                        ? best
                        : HWY_DYNAMIC_DISPATCH(MaxLogit)(logits.data(), logits.size());
  const double log_sum =
      max + std::log(HWY_DYNAMIC_DISPATCH(SumOfExp)(logits.data(), logits.size(), max, 1.0f));
  args.logprobs.device_data()[i] = static_cast<float>(logits[static_cast<size_t>(token)] - log_sum);
  if (row.wants_rank != 0) args.ranks.device_data()[i] = RankOf(logits, token);
  if (row.num_top_logprobs > 0) {
    WriteTop(logits, row.num_top_logprobs, log_sum, candidates,
             args.top_tokens.device_data() + i * kMaxTopLogprobs,
             args.top_logprobs.device_data() + i * kMaxTopLogprobs);
  }
}

}  // namespace

absl::Status Sampling(CpuStream& stream, const SamplingArgs& args) {
  RETURN_IF_ERROR(CheckSampling(args));
  const int64_t batch = args.logits.rows;
  // Each thread has working memory of its own, so args.scratch is not used.
  return stream.Launch([args, batch](ThreadPool& pool) {
    pool.ParallelFor(batch, [&args](int64_t i) { SampleRow(args, i); });
  });
}

}  // namespace retroinfer::cpu
#endif  // HWY_ONCE
