#include "http_gateway/api/answer_reader.h"

namespace retroinfer::gateway {

AnswerReader::AnswerReader(const AnswerReaderOptions& options)
    : one_call_(options.one_call),
      splitter_(options.splitter),
      calls_(options.tool_form, options.functions, options.is_forced) {}

std::vector<AnswerPiece> AnswerReader::Append(std::string_view text) {
  std::vector<AnswerPiece> pieces;
  if (ended_) return pieces;
  if (splitter_.has_value()) {
    Add(splitter_->Append(text), &pieces);
  } else {
    calls_.Append(text, &pieces);
  }
  Count(&pieces);
  return pieces;
}

std::vector<AnswerPiece> AnswerReader::Finish() {
  std::vector<AnswerPiece> pieces;
  if (ended_) return pieces;
  if (splitter_.has_value()) Add(splitter_->Finish(), &pieces);
  calls_.Finish(&pieces);
  Count(&pieces);
  return pieces;
}

void AnswerReader::Add(const ReasoningSplitter::Parts& parts, std::vector<AnswerPiece>* pieces) {
  AppendPiece(AnswerPiece::Kind::kReasoning, parts.reasoning, pieces);
  calls_.Append(parts.content, pieces);
}

void AnswerReader::Count(std::vector<AnswerPiece>* pieces) {
  for (size_t i = 0; i < pieces->size(); ++i) {
    if ((*pieces)[i].kind == AnswerPiece::Kind::kCallBegin) ++num_calls_;
    if (!one_call_ || (*pieces)[i].kind != AnswerPiece::Kind::kCallEnd) continue;
    pieces->resize(i + 1);
    ended_ = true;
  }
}

}  // namespace retroinfer::gateway
