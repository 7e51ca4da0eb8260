#include "gpu_worker/scheduler/output_lengths.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace retroinfer {

void OutputLengths::Lengths::Add(int64_t length) {
  tokens[count++ % kSamples] =
      static_cast<int32_t>(std::min<int64_t>(length, std::numeric_limits<int32_t>::max()));
  std::array<int32_t, kSamples> sorted = tokens;
  const size_t size = std::min(count, kSamples);
  const auto at = sorted.begin() + static_cast<ptrdiff_t>((size - 1) * 4 / 5);
  std::nth_element(sorted.begin(), at, sorted.begin() + static_cast<ptrdiff_t>(size));
  typical = *at;
}

size_t OutputLengths::KindOf(int64_t max_tokens) {
  const auto bits = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(max_tokens)));
  return std::min(bits, kKinds - 1);
}

void OutputLengths::Update(const SchedulerInput& input) {
  if (of_tenants_.size() < input.weights.size()) of_tenants_.resize(input.weights.size());
  for (const uint32_t tenant : input.new_tenants) of_tenants_[tenant] = {};
  ++round_;
  for (const RequestDescription& request : input.requests) {
    if (request.phase < RequestPhase::kDecoding || request.length_is_known) continue;
    const int64_t max_tokens = request.tokens_generated + request.tokens_left;
    decoding_[request.id] = {.tenant = request.tenant,
                             .kind = KindOf(max_tokens),
                             .generated = request.tokens_generated,
                             .round = round_};
  }
  absl::erase_if(decoding_, [&](const auto& entry) {
    const Decoding& one = entry.second;
    if (one.round == round_) return false;
    of_tenants_[one.tenant][one.kind].Add(one.generated);
    of_all_[one.kind].Add(one.generated);
    return true;
  });
}

int64_t OutputLengths::Expected(const RequestDescription& request) const {
  const int64_t max_tokens = request.tokens_generated + request.tokens_left;
  if (request.length_is_known) return max_tokens;
  const size_t kind = KindOf(max_tokens);
  const Lengths* lengths = &of_all_[kind];
  if (request.tenant < of_tenants_.size() &&
      of_tenants_[request.tenant][kind].count >= kLeastSamples) {
    lengths = &of_tenants_[request.tenant][kind];
  }
  // Without samples the request is taken to generate all that it may: too few requests are admitted
  // rather than too many.
  if (lengths->count < kLeastSamples) return max_tokens;
  const int64_t expected =
      request.tokens_generated < lengths->typical ? lengths->typical : 2 * request.tokens_generated;
  return std::min(expected, max_tokens);
}

}  // namespace retroinfer
