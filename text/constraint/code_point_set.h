// A set of Unicode characters, as ranges.
#pragma once

#include <initializer_list>
#include <vector>

namespace retroinfer::constraint {

struct CodePointRange {
  char32_t first;
  char32_t last;
  bool operator==(const CodePointRange&) const = default;
};

// Surrogates are never members: UTF-8 has none.
//
// Threads: as a vector.
class CodePointSet {
 public:
  CodePointSet() = default;
  CodePointSet(std::initializer_list<CodePointRange> ranges);

  static CodePointSet All();

  // REQUIRES: first <= last <= U+10FFFF.
  void Add(char32_t first, char32_t last);
  void Add(const CodePointSet& other);

  CodePointSet Complement() const;
  CodePointSet Minus(const CodePointSet& other) const;
  CodePointSet And(const CodePointSet& other) const;
  bool Contains(char32_t code) const;
  // Whether each member of `other` is a member.
  bool Includes(const CodePointSet& other) const;
  bool empty() const { return ranges_.empty(); }

  // Ascending; they neither overlap nor touch, but for the gap of the surrogates.
  const std::vector<CodePointRange>& ranges() const { return ranges_; }

 private:
  void Normalize();

  std::vector<CodePointRange> ranges_;
};

}  // namespace retroinfer::constraint
