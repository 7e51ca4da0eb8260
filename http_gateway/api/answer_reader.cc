#include "http_gateway/api/answer_reader.h"

#include <utility>

namespace retroinfer::gateway {

AnswerReader::AnswerReader(const AnswerReaderOptions& options)
    : splitter_(options.splitter), calls_(options.tool_form, options.tool_names) {
  std::vector<AnswerPiece> none;
  calls_.Append(options.opening, &none);
}

std::vector<AnswerPiece> AnswerReader::Append(std::string_view text) {
  std::vector<AnswerPiece> pieces;
  if (splitter_.has_value()) {
    const ReasoningSplitter::Parts parts = splitter_->Append(text);
    AppendPiece(AnswerPiece::Kind::kReasoning, parts.reasoning, &pieces);
    calls_.Append(parts.content, &pieces);
  } else {
    calls_.Append(text, &pieces);
  }
  Count(pieces);
  return pieces;
}

std::vector<AnswerPiece> AnswerReader::Finish() {
  std::vector<AnswerPiece> pieces;
  if (splitter_.has_value()) {
    const ReasoningSplitter::Parts parts = splitter_->Finish();
    AppendPiece(AnswerPiece::Kind::kReasoning, parts.reasoning, &pieces);
    calls_.Append(parts.content, &pieces);
  }
  calls_.Finish(&pieces);
  Count(pieces);
  return pieces;
}

void AnswerReader::Count(const std::vector<AnswerPiece>& pieces) {
  for (const AnswerPiece& piece : pieces) {
    if (piece.kind == AnswerPiece::Kind::kCallBegin) ++num_calls_;
  }
}

}  // namespace retroinfer::gateway
