#include "http_gateway/api/answer_items.h"

#include <utility>

#include "http_gateway/api/call_id.h"

namespace retroinfer::gateway {

void AnswerItems::Append(std::string_view text, int64_t completion_tokens) {
  Add(reader_.Append(text));
  const bool has_thoughts_only =
      items_.size() == 1 && items_.front().kind == AnswerItem::Kind::kThoughts;
  if (has_thoughts_only) reasoning_tokens_ = completion_tokens;
}

void AnswerItems::Finish() {
  Add(reader_.Finish());
  End();
}

void AnswerItems::Add(const std::vector<AnswerPiece>& pieces) {
  for (const AnswerPiece& piece : pieces) {
    switch (piece.kind) {
      case AnswerPiece::Kind::kReasoning:
        AddText(AnswerItem::Kind::kThoughts, piece.text);
        break;
      case AnswerPiece::Kind::kText:
        AddText(AnswerItem::Kind::kText, piece.text);
        break;
      case AnswerPiece::Kind::kCallBegin:
        Begin({.kind = AnswerItem::Kind::kCall,
               .text = "",
               .name = piece.text,
               .call_id = DrawCallId(tool_form_)});
        break;
      case AnswerPiece::Kind::kCallArguments:
        AddText(AnswerItem::Kind::kCall, piece.text);
        break;
      case AnswerPiece::Kind::kCallEnd:
        End();
        break;
    }
  }
}

void AnswerItems::AddText(AnswerItem::Kind kind, std::string_view text) {
  if (!is_open_ || items_.back().kind != kind)
    Begin({.kind = kind, .text = "", .name = "", .call_id = ""});
  items_.back().text.append(text);
  listener_->OnItemText(items_.size() - 1, items_.back(), text);
}

void AnswerItems::Begin(AnswerItem item) {
  End();
  items_.push_back(std::move(item));
  is_open_ = true;
  listener_->OnItemBegin(items_.size() - 1, items_.back());
}

void AnswerItems::End() {
  if (!std::exchange(is_open_, false)) return;
  listener_->OnItemEnd(items_.size() - 1, items_.back());
}

}  // namespace retroinfer::gateway
