#include "text/constraint/constraint_compiler.h"

#include "common/status/status_macros.h"
#include "text/constraint/network_builder.h"
#include "text/constraint/spec_grammar.h"

namespace retroinfer::constraint {

ConstraintCompiler::ConstraintCompiler(std::shared_ptr<const TokenVocabulary> vocabulary,
                                       Limits limits)
    : vocabulary_(std::move(vocabulary)), limits_(limits) {}

absl::StatusOr<std::shared_ptr<const Constraint>> ConstraintCompiler::Compile(
    const ConstraintSpec& spec) {
  {
    absl::MutexLock lock(&mutex_);
    const auto known = by_spec_.find(spec);
    if (known != by_spec_.end()) {
      entries_.splice(entries_.begin(), entries_, known->second);
      std::shared_ptr<const Constraint> constraint = known->second->second;
      Shrink();
      return constraint;
    }
  }
  ASSIGN_OR_RETURN(const Grammar grammar, GrammarOf(spec, *vocabulary_, limits_));
  ASSIGN_OR_RETURN(Network network,
                   BuildNetwork(grammar, vocabulary_->text_characters_max(), limits_));
  auto constraint = std::make_shared<const Constraint>(std::move(network), vocabulary_, limits_);
  absl::MutexLock lock(&mutex_);
  // Another thread may have compiled the same meanwhile: all use the one that came first.
  const auto known = by_spec_.find(spec);
  if (known != by_spec_.end()) return known->second->second;
  entries_.emplace_front(spec, constraint);
  by_spec_.emplace(spec, entries_.begin());
  Shrink();
  return constraint;
}

void ConstraintCompiler::Shrink() {
  size_t bytes = 0;
  size_t count = 0;
  auto entry = entries_.begin();
  for (; entry != entries_.end() && count < limits_.cache_constraints_max; ++entry, ++count) {
    bytes += entry->second->memory_bytes() + 2 * entry->first.text.size();
    if (bytes > limits_.cache_bytes_max) break;
  }
  while (entry != entries_.end()) {
    by_spec_.erase(entry->first);
    entry = entries_.erase(entry);
  }
}

}  // namespace retroinfer::constraint
