#include "gpu_worker/executor/prefill_runs.h"

#include <algorithm>
#include <utility>

#include "common/kv/kv_geometry.h"
#include "common/kv/query_units.h"

namespace retroinfer {
namespace {

using Members = std::vector<size_t>;

// Invariant of Visit(): tokens [0, position) of all its members are the same, and the prefix
// group's buffer holds their KV once pending_ and the runs before have been carried out.
class Planner {
 public:
  explicit Planner(std::span<const RunMember> members) : members_(members) {
    plan_.prefix_group_of.resize(members.size());
  }

  PrefillRuns Plan() && {
    std::vector<bool> is_taken(members_.size(), false);
    for (size_t i = 0; i < members_.size(); ++i) {
      if (is_taken[i]) continue;
      Members prefix_group;
      for (size_t j = i; j < members_.size(); ++j) {
        if (j != i && (is_taken[j] || !ShareCachedPrefix(i, j))) continue;
        is_taken[j] = true;
        plan_.prefix_group_of[j] = plan_.num_prefix_groups;
        prefix_group.push_back(j);
      }
      Visit(std::move(prefix_group), members_[i].begin);
      ++plan_.num_prefix_groups;
    }
    return std::move(plan_);
  }

 private:
  bool ShareCachedPrefix(size_t a, size_t b) const {
    const RunMember& one = members_[a];
    const RunMember& other = members_[b];
    if (one.is_sparse || other.is_sparse) return false;
    if (!one.read_behind.empty() || !other.read_behind.empty()) {
      return std::ranges::equal(one.read_behind, other.read_behind, {}, &CachedRun::name,
                                &CachedRun::name);
    }
    return one.may_share && other.may_share && !one.cached.empty() && !other.cached.empty() &&
           one.cached[0].name == other.cached[0].name;
  }

  // Index of the member's cached run that begins at `position`; cached.size(): there is none.
  size_t CachedAt(size_t member, int64_t position) const {
    const std::span<const CachedRun> cached = members_[member].cached;
    const auto found = std::lower_bound(
        cached.begin(), cached.end(), position,
        [](const CachedRun& run, int64_t begin) { return run.token_begin < begin; });
    const bool is_there = found != cached.end() && found->token_begin == position;
    return is_there ? static_cast<size_t>(found - cached.begin()) : cached.size();
  }
  bool IsCachedAt(size_t member, int64_t position) const {
    return CachedAt(member, position) < members_[member].cached.size();
  }
  int32_t TokenAt(size_t member, int64_t position) const {
    return members_[member].prompt[static_cast<size_t>(position)];
  }
  // The end of the tokens from `position` on that a and b have in common and have to compute.
  int64_t CommonEnd(size_t a, size_t b, int64_t position) const {
    int64_t end = position;
    while (end < StretchEnd(a, position) && end < StretchEnd(b, position) &&
           TokenAt(a, end) == TokenAt(b, end)) {
      ++end;
    }
    return end;
  }
  // The end of what the member computes from `position` on: the sink, or the rest.
  int64_t StretchEnd(size_t member, int64_t position) const {
    const RunMember& one = members_[member];
    return !one.cached.empty() && position < kSinkTokens ? int64_t{kSinkTokens} : one.end;
  }

  // Whether b goes on at `position` as a does: reads the same KV, or computes the same token.
  bool GoOnAlike(size_t a, size_t b, int64_t position) const {
    const bool is_cached = IsCachedAt(a, position);
    if (is_cached != IsCachedAt(b, position)) return false;
    if (!is_cached) return TokenAt(a, position) == TokenAt(b, position);
    return members_[a].cached[CachedAt(a, position)].name ==
           members_[b].cached[CachedAt(b, position)].name;
  }

  void Visit(Members members, int64_t position) {
    while (!members.empty()) {
      Members branch, others;
      for (const size_t member : members) {
        const bool is_alike = branch.empty() || GoOnAlike(branch.front(), member, position);
        (is_alike ? branch : others).push_back(member);
      }
      Follow(std::move(branch), position);
      members = std::move(others);
    }
  }

  // Plans the next cached run, or the next rows, of members that go on alike, and what follows.
  void Follow(Members branch, int64_t position) {
    const size_t first = branch.front();
    if (IsCachedAt(first, position)) {
      const size_t index = CachedAt(first, position);
      const int64_t end = members_[first].cached[index].token_end();
      pending_.push_back({.index = index, .members = branch});
      return Visit(std::move(branch), end);
    }
    int64_t end = StretchEnd(first, position);
    for (const size_t member : branch) {
      if (member != first) end = std::min(end, CommonEnd(first, member, position));
    }
    PrefillRun run{.prefix_group = plan_.num_prefix_groups,
                   .first_row = num_rows_,
                   .num_rows = end - position,
                   .first_position = position,
                   .reads = std::exchange(pending_, {}),
                   .members = branch,
                   .ends_with_it = {},
                   .is_sparse = members_[first].is_sparse};
    Members rest;
    for (const size_t member : branch) {
      (members_[member].end == end ? run.ends_with_it : rest).push_back(member);
    }
    num_rows_ += run.num_rows;
    plan_.runs.push_back(std::move(run));
    Visit(std::move(rest), end);
  }

  const std::span<const RunMember> members_;
  PrefillRuns plan_;
  int64_t num_rows_ = 0;
  std::vector<CachedRead> pending_;  // before the next run
};

}  // namespace

RunMember RunMemberOf(const SequenceKv& sequence, std::span<const int32_t> prompt,
                      const PromptPart& part, bool keeps_all_rows) {
  // Only the sink is computed: the lane reads for the policy alone (PrefillLane::ReadWindow).
  if (sequence.reads_all()) {
    const auto window = static_cast<ptrdiff_t>(sequence.num_cached_segments);
    return {.prompt = prompt,
            .end = kSinkTokens,
            .read_behind = std::span(sequence.cached).subspan(static_cast<size_t>(window))};
  }
  const bool is_whole =
      part.begin == 0 && part.num_context == 0 && part.end == static_cast<int64_t>(prompt.size());
  return {.prompt = prompt,
          .cached = sequence.cached,
          .begin = part.begin,
          .end = part.end,
          .may_share = is_whole && !keeps_all_rows,
          .is_sparse = sequence.settings.prefill == PrefillKind::kSparse};
}

PrefillRuns PlanRuns(std::span<const RunMember> members) { return Planner(members).Plan(); }

int64_t PrefillRuns::RowsBefore(int64_t row, size_t member) const {
  int64_t rows = 0;
  for (const PrefillRun& run : runs) {
    if (std::ranges::count(run.members, member) == 0) continue;
    rows += std::clamp(row - run.first_row, int64_t{0}, run.num_rows);
  }
  return rows;
}

int64_t PrefillRuns::WholeUnits(int64_t first_row, int64_t rows) const {
  const int64_t num_rows = runs.empty() ? 0 : runs.back().first_row + runs.back().num_rows;
  const int64_t end = std::min(first_row + rows, num_rows);
  for (const PrefillRun& run : runs) {
    const int64_t run_end = run.first_row + run.num_rows;
    if (!run.is_sparse || end <= run.first_row || end >= run_end) continue;
    const int64_t to_position = run.first_position - run.first_row;
    const int64_t least = std::max(first_row + 1, run.first_row);
    const int64_t cut =
        EndOfUnits(least + to_position, end + to_position, run_end + to_position) - to_position;
    // Before the run is a place, too, where that begins within a unit.
    return (cut > end && first_row < run.first_row ? run.first_row : cut) - first_row;
  }
  return end - first_row;
}

int64_t CommonTokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace retroinfer
