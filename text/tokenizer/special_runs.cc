#include "text/tokenizer/special_runs.h"

#include <algorithm>

namespace retroinfer {

void SpecialRuns::Append(size_t num_bytes, bool may_be_special) {
  if (num_bytes == 0) return;
  const size_t end = size() + num_bytes;
  if (!runs_.empty() && runs_.back().may_be_special == may_be_special) {
    runs_.back().end = end;
  } else {
    runs_.push_back({end, may_be_special});
  }
}

// The run that holds the byte at `offset`.
size_t SpecialRuns::IndexAt(size_t offset) const {
  const auto run = std::upper_bound(runs_.begin(), runs_.end(), offset,
                                    [](size_t at, const Run& item) { return at < item.end; });
  return static_cast<size_t>(run - runs_.begin());
}

bool SpecialRuns::Allow(size_t begin, size_t end) const {
  if (begin >= end) return false;
  const size_t index = IndexAt(begin);
  return index < runs_.size() && runs_[index].may_be_special && end <= runs_[index].end;
}

size_t SpecialRuns::NextAllowed(size_t from) const {
  const size_t index = IndexAt(from);
  if (index == runs_.size() || runs_[index].may_be_special) return std::min(from, size());
  return runs_[index].end;  // the next run, if there is one, may be
}

SpecialRuns SpecialRuns::Part(size_t begin, size_t end) const {
  SpecialRuns part;
  for (size_t index = IndexAt(begin); index < runs_.size() && begin < end; ++index) {
    const size_t stop = std::min(end, runs_[index].end);
    part.Append(stop - begin, runs_[index].may_be_special);
    begin = stop;
  }
  return part;
}

}  // namespace retroinfer
