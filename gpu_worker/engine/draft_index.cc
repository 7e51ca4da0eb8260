#include "gpu_worker/engine/draft_index.h"

#include <algorithm>
#include <bit>

namespace retroinfer {

DraftIndex::DraftIndex(std::span<const int32_t> prompt, std::span<const int32_t> prediction)
    : prompt_(prompt),
      prediction_(prediction),
      begin_(std::max<int64_t>(0, std::ssize(prompt) + std::ssize(prediction) - kMostIndexed)),
      num_indexed_(begin_) {}

void DraftIndex::Append(int32_t token) {
  if (num_predicted_ == answer_.size() && num_predicted_ < prediction_.size() &&
      prediction_[num_predicted_] == token) {
    ++num_predicted_;
  }
  answer_.push_back(token);
}

size_t DraftIndex::PlaceOf(int64_t position) const {
  constexpr uint64_t kMix = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio
  uint64_t hash = 0;
  for (int64_t i = 0; i < kLeastMatch; ++i) {
    hash = (hash ^ static_cast<uint32_t>(At(position - i))) * kMix;
    hash ^= hash >> 32;
  }
  return hash & (newest_.size() - 1);
}

int64_t DraftIndex::Index(int64_t most) {
  if (newest_.empty()) {
    constexpr size_t kLeastTable = 1024;
    const auto tokens = static_cast<size_t>(num_tokens() - begin_);
    newest_.assign(std::clamp(std::bit_ceil(tokens), kLeastTable, kMaxTable), kNone);
    previous_.reserve(tokens);
  }
  const int64_t first = num_indexed_;
  const int64_t end = std::min(num_tokens(), first + most);
  for (; num_indexed_ < end; ++num_indexed_) {
    const auto at = static_cast<int32_t>(num_indexed_ - begin_);
    if (at + 1 < kLeastMatch) {
      previous_.push_back(kNone);
      continue;
    }
    int32_t& newest = newest_[PlaceOf(num_indexed_)];
    previous_.push_back(newest);
    newest = at;
  }
  return num_indexed_ - first;
}

int64_t DraftIndex::AlikeUpTo(int64_t a, int64_t b) const {
  int64_t most = std::min(kMostMatch, std::min(a, b) + 1 - begin_);
  if (!prediction_.empty()) most = std::min(most, std::ssize(answer_));
  int64_t length = 0;
  while (length < most && At(a - length) == At(b - length)) ++length;
  return length;
}

std::optional<DraftIndex::Match> DraftIndex::Find() const {
  const int64_t last = num_tokens() - 1;
  if (num_predicted_ == answer_.size() && num_predicted_ < prediction_.size()) {
    return Match{.next = std::ssize(prompt_) + static_cast<int64_t>(num_predicted_),
                 .length = kMostMatch};
  }
  if (!is_whole() || last + 1 - begin_ < kLeastMatch) return std::nullopt;
  Match best;
  int32_t at = previous_.back();
  for (int i = 0; i < kMostCandidates && at != kNone && best.length < kMostMatch; ++i) {
    const int64_t position = begin_ + at;
    if (const int64_t length = AlikeUpTo(position, last); length > best.length) {
      best = {.next = position + 1, .length = length};
    }
    at = previous_[static_cast<size_t>(at)];
  }
  if (best.length < kLeastMatch) return std::nullopt;
  return best;
}

void DraftIndex::Read(const Match& match, int64_t count, std::vector<int32_t>& draft) const {
  const size_t before = draft.size();
  const int64_t end_of_prediction = std::ssize(prompt_) + std::ssize(prediction_);
  if (match.next >= std::ssize(prompt_) && match.next < end_of_prediction) {
    count = std::min(count, end_of_prediction - match.next);
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = match.next + i;
    const int64_t beyond = position - num_tokens();
    draft.push_back(beyond < 0 ? At(position) : draft[before + static_cast<size_t>(beyond)]);
  }
}

DraftSource DraftIndex::SourceOf(const Match& match) const {
  if (match.next < std::ssize(prompt_)) return DraftSource::kPrompt;
  return match.next < std::ssize(prompt_) + std::ssize(prediction_) ? DraftSource::kPrediction
                                                                    : DraftSource::kAnswer;
}

}  // namespace retroinfer
