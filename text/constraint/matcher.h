// Follows one text that a constraint is for, token by token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "text/constraint/constraint.h"

namespace retroinfer::constraint {

// Cheap to copy: a copy goes on from the same place by itself.
//
// Threads: one at a time; matchers of one constraint may be used on several threads at once.
class Matcher {
 public:
  // At the beginning of the text.
  explicit Matcher(std::shared_ptr<const Constraint> constraint);

  // Takes a token that was drawn. Returns whether the mask has it; if not, nothing changes. An end
  // token is taken where CanEnd(), and changes nothing.
  bool Accept(int32_t token);

  // Sets bit t of word t/32 if token t can follow; end tokens where CanEnd(). All words are
  // written. Each text that masks permit can still become one of the texts of the constraint.
  //
  // REQUIRES: mask.size() is TokenVocabulary::mask_words().
  // Cost:     a copy where the constraint remembers the mask; else a walk over tokens, for which
  //           docs/decisions/0072-constraints-of-our-own.md has figures.
  void Fill(std::span<uint32_t> mask);

  // The text so far is one of the texts.
  bool CanEnd() const { return place_.can_end; }
  // ... and nothing can follow.
  bool MustEnd() const { return place_.can_end && !place_.can_go_on; }

  // OK, or why Fill() found no mask (Constraint::Fill). Masks then have the end tokens alone, which
  // Accept() takes: the text is cut off, and is none of the texts.
  const absl::Status& status() const { return status_; }

 private:
  std::shared_ptr<const Constraint> constraint_;
  Constraint::Place place_;
  absl::Status status_;
};

}  // namespace retroinfer::constraint
