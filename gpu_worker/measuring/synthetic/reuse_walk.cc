#include "gpu_worker/measuring/synthetic/reuse_walk.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/log/check.h"

namespace retroinfer {
namespace {

// In [0, 1), the same with every standard library.
double Uniform(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) / static_cast<double>(uint64_t{1} << 53);
}

}  // namespace

ReuseWalk::ReuseWalk(const RecordedReuse& reuse, const HeadReuse& head, std::vector<uint32_t> order,
                     size_t cells_of_step, double constant, uint64_t seed)
    : reuse_(reuse),
      head_(head),
      num_cells_(order.size()),
      cells_of_step_(cells_of_step),
      constant_(constant),
      random_(seed),
      unread_(std::move(order)) {
  RI_CHECK(cells_of_step >= 1 && cells_of_step <= num_cells_);
  std::reverse(unread_.begin(), unread_.end());
}

// One draw that is shifted by equal steps: of many cells, as many as there should be.
std::vector<size_t> ReuseWalk::DrawCounts() {
  const auto phase = static_cast<size_t>(
      std::upper_bound(kPhaseEnds.begin(), kPhaseEnds.end(), step_) - kPhaseEnds.begin());
  const double first = step_ == 0 ? 1 : reuse_.first[phase] / 1e4;
  const double sum = std::accumulate(head_.at_depth.begin(), head_.at_depth.end(), 0.0);
  std::vector<double> shares = {first};
  for (const uint16_t share : head_.at_depth) shares.push_back((1 - first) * share / sum);
  if (step_ != 0) shares[1] = std::max(0.0, shares[1] - constant_);
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<size_t> counts(shares.size());
  const double shift = Uniform(random_);
  size_t range = 0;
  double end = shares[0] / all;
  for (size_t i = 0; i < cells_of_step_; ++i) {
    const double at = (static_cast<double>(i) + shift) / static_cast<double>(cells_of_step_);
    while (at >= end && range + 1 < counts.size()) {
      end += shares[++range] / all;
    }
    ++counts[range];
  }
  return counts;
}

size_t ReuseWalk::Choose(size_t begin, size_t end, size_t count) {
  std::vector<size_t> free;
  for (size_t i = begin; i < std::min(end, recent_.size()); ++i) {
    if (!is_chosen_[i]) free.push_back(i);
  }
  for (size_t i = 0; i < std::min(count, free.size()); ++i) {
    std::swap(free[i], free[i + random_() % (free.size() - i)]);
    is_chosen_[free[i]] = true;
  }
  size_t num_chosen = std::min(count, free.size());
  const auto choose = [&](size_t i) {
    if (num_chosen == count || is_chosen_[i]) return;
    is_chosen_[i] = true;
    ++num_chosen;
  };
  for (size_t i = end; i < recent_.size(); ++i) choose(i);
  for (size_t i = std::min(begin, recent_.size()); i > 0; --i) choose(i - 1);
  return num_chosen;
}

std::span<const uint32_t> ReuseWalk::Next() {
  const std::vector<size_t> counts = DrawCounts();
  const size_t of_last_step = step_ == 0 ? 0 : cells_of_step_;
  is_chosen_.assign(recent_.size(), false);
  size_t num_fresh = counts[0];
  size_t begin = 0, end = of_last_step;
  for (size_t range = 1; range < counts.size(); ++range) {
    const size_t chosen = Choose(begin, end, counts[range]);
    num_fresh += counts[range] - chosen;
    if (range == counts.size() - 1) break;
    begin = end;
    end = std::max(
        begin, static_cast<size_t>(kDepthEnds[range - 1] * static_cast<float>(num_cells_) + 0.5f));
  }
  // What cannot be new any more is what was read longest ago.
  for (size_t i = recent_.size(); i > 0 && num_fresh > unread_.size(); --i) {
    if (is_chosen_[i - 1]) continue;
    is_chosen_[i - 1] = true;
    --num_fresh;
  }
  std::vector<uint32_t> now, before;
  for (size_t i = 0; i < recent_.size(); ++i) {
    (is_chosen_[i] ? now : before).push_back(recent_[i]);
  }
  for (; num_fresh > 0; --num_fresh) {
    now.push_back(unread_.back());
    unread_.pop_back();
  }
  RI_CHECK(now.size() == cells_of_step_);
  now.insert(now.end(), before.begin(), before.end());
  recent_ = std::move(now);
  ++step_;
  return std::span(recent_).first(cells_of_step_);
}

}  // namespace retroinfer
