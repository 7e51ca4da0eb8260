#include "text/constraint/code_point_set.h"

#include <algorithm>

namespace retroinfer::constraint {
namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;
constexpr char32_t kFirstSurrogate = 0xD800;
constexpr char32_t kLastSurrogate = 0xDFFF;

}  // namespace

CodePointSet::CodePointSet(std::initializer_list<CodePointRange> ranges) : ranges_(ranges) {
  Normalize();
}

CodePointSet CodePointSet::All() { return CodePointSet{{0, kLastCodePoint}}; }

void CodePointSet::Add(char32_t first, char32_t last) {
  ranges_.push_back({first, last});
  Normalize();
}

void CodePointSet::Add(const CodePointSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  Normalize();
}

void CodePointSet::Normalize() {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  std::vector<CodePointRange> merged;
  const auto append = [&merged](char32_t first, char32_t last) {
    if (first > last) return;
    if (!merged.empty() && first <= merged.back().last + 1) {
      merged.back().last = std::max(merged.back().last, last);
    } else {
      merged.push_back({first, last});
    }
  };
  for (const CodePointRange& range : ranges_) {
    if (range.first < kFirstSurrogate) {
      append(range.first, std::min<char32_t>(range.last, kFirstSurrogate - 1));
    }
    if (range.last > kLastSurrogate) {
      append(std::max<char32_t>(range.first, kLastSurrogate + 1), range.last);
    }
  }
  ranges_ = std::move(merged);
}

CodePointSet CodePointSet::Complement() const {
  CodePointSet rest;
  char32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) rest.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) rest.ranges_.push_back({next, kLastCodePoint});
  rest.Normalize();
  return rest;
}

CodePointSet CodePointSet::Minus(const CodePointSet& other) const {
  return And(other.Complement());
}

CodePointSet CodePointSet::And(const CodePointSet& other) const {
  CodePointSet both;
  size_t i = 0;
  size_t j = 0;
  while (i < ranges_.size() && j < other.ranges_.size()) {
    const CodePointRange& a = ranges_[i];
    const CodePointRange& b = other.ranges_[j];
    const char32_t first = std::max(a.first, b.first);
    const char32_t last = std::min(a.last, b.last);
    if (first <= last) both.ranges_.push_back({first, last});
    if (a.last < b.last) {
      ++i;
    } else {
      ++j;
    }
  }
  return both;
}

bool CodePointSet::Contains(char32_t code) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [code](const CodePointRange& range) {
    return range.first <= code && code <= range.last;
  });
}

bool CodePointSet::Includes(const CodePointSet& other) const { return other.Minus(*this).empty(); }

}  // namespace retroinfer::constraint
