// Compiles constraints for one model, and remembers them.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "text/constraint/constraint.h"
#include "text/constraint/constraint_spec.h"
#include "text/constraint/limits.h"
#include "text/constraint/token_vocabulary.h"

namespace retroinfer::constraint {

// The least recently compiled constraints go where there are too many, or where all together hold
// too many bytes; those in use live on with their matchers.
//
// Threads: any.
class ConstraintCompiler {
 public:
  explicit ConstraintCompiler(std::shared_ptr<const TokenVocabulary> vocabulary,
                              Limits limits = {});

  // Returns: INVALID_ARGUMENT, reason INVALID_CONSTRAINT, with what is wrong and, in the metadata
  //          "at", where: a JSON pointer, "line 3", "offset 7", or the name of a field.
  // Cost:    a look-up for one that is remembered; else in proportion to the constraint, within the
  //          limits.
  absl::StatusOr<std::shared_ptr<const Constraint>> Compile(const ConstraintSpec& spec);

  const std::shared_ptr<const TokenVocabulary>& vocabulary() const { return vocabulary_; }

 private:
  using Entries = std::list<std::pair<ConstraintSpec, std::shared_ptr<const Constraint>>>;

  void Shrink() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const TokenVocabulary> vocabulary_;
  const Limits limits_;

  absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);  // the most recently used first
  absl::flat_hash_map<ConstraintSpec, Entries::iterator> by_spec_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace retroinfer::constraint
