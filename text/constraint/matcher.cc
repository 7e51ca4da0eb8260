#include "text/constraint/matcher.h"

#include <string_view>
#include <utility>

namespace retroinfer::constraint {

Matcher::Matcher(std::shared_ptr<const Constraint> constraint)
    : constraint_(std::move(constraint)), place_(constraint_->Start()) {}

bool Matcher::Accept(int32_t token) {
  const TokenVocabulary& vocabulary = constraint_->vocabulary();
  if (vocabulary.IsEnd(token)) return CanEnd() || !status_.ok();
  if (!status_.ok()) return false;
  const std::string_view bytes = vocabulary.BytesOf(token);
  return !bytes.empty() && constraint_->Advance(place_, bytes);
}

void Matcher::Fill(std::span<uint32_t> mask) { status_.Update(constraint_->Fill(place_, mask)); }

}  // namespace retroinfer::constraint
