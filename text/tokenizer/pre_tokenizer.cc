#include "text/tokenizer/pre_tokenizer.h"

#include <optional>
#include <utility>

#include "common/status/status_macros.h"

namespace retroinfer {

absl::StatusOr<PreTokenizer> PreTokenizer::Create(const std::vector<SplitSpec>& splits) {
  PreTokenizer pre_tokenizer;
  for (const SplitSpec& split : splits) {
    ASSIGN_OR_RETURN(SplitRegex regex, SplitRegex::Compile(split.pattern));
    pre_tokenizer.stages_.push_back({std::move(regex), split.keep_matches, split.keep_gaps});
  }
  return pre_tokenizer;
}

PreTokenizer::Run::Run(const PreTokenizer& pre_tokenizer) : pre_tokenizer_(&pre_tokenizer) {
  for (const Stage& stage : pre_tokenizer.stages_) matchers_.emplace_back(stage.regex);
}

absl::StatusOr<const std::vector<std::string_view>*> PreTokenizer::Run::Split(
    std::string_view text) {
  pieces_.clear();
  if (!text.empty()) pieces_.push_back(text);
  for (size_t stage = 0; stage < matchers_.size(); ++stage) {
    next_pieces_.clear();
    for (const std::string_view piece : pieces_) RETURN_IF_ERROR(SplitPiece(stage, piece));
    pieces_.swap(next_pieces_);
  }
  return &pieces_;
}

absl::Status PreTokenizer::Run::SplitPiece(size_t stage_index, std::string_view piece) {
  const Stage& stage = pre_tokenizer_->stages_[stage_index];
  const auto add = [&](bool keep, size_t begin, size_t end) {
    if (keep && begin < end) next_pieces_.push_back(piece.substr(begin, end - begin));
  };
  size_t offset = 0;
  while (offset < piece.size()) {
    ASSIGN_OR_RETURN(const std::optional<SplitMatcher::Match> match,
                     matchers_[stage_index].Find(piece, offset));
    if (!match.has_value()) break;
    add(stage.keep_gaps, offset, match->begin);
    add(stage.keep_matches, match->begin, match->end);
    offset = match->end;
  }
  add(stage.keep_gaps, offset, piece.size());
  return absl::OkStatus();
}

}  // namespace retroinfer
