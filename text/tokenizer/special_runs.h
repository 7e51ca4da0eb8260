// Where in a text special tokens may be recognised.
#pragma once

#include <cstddef>
#include <vector>

namespace retroinfer {

// The runs of a text, in order.
class SpecialRuns {
 public:
  SpecialRuns() = default;
  // One run of the whole text.
  SpecialRuns(size_t num_bytes, bool may_be_special) { Append(num_bytes, may_be_special); }

  // Adds a run at the end.
  void Append(size_t num_bytes, bool may_be_special);

  // Whether all of [begin, end) may be special.
  bool Allow(size_t begin, size_t end) const;
  // The first offset from `from` on that may be special; size() if there is none.
  size_t NextAllowed(size_t from) const;
  // The runs of the bytes [begin, end), from offset 0.
  SpecialRuns Part(size_t begin, size_t end) const;

  size_t size() const { return runs_.empty() ? 0 : runs_.back().end; }
  struct Run {
    size_t end;
    bool may_be_special;
    bool operator==(const Run&) const = default;
  };
  // None of them empty; neighbours differ.
  const std::vector<Run>& runs() const { return runs_; }

 private:
  size_t IndexAt(size_t offset) const;

  std::vector<Run> runs_;
};

}  // namespace retroinfer
