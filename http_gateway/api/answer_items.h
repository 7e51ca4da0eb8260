// What an answer is made of, where that is not one text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "http_gateway/api/answer_reader.h"

namespace retroinfer::gateway {

// Thoughts, a text or a call.
struct AnswerItem {
  enum class Kind { kThoughts, kText, kCall };
  Kind kind = Kind::kText;
  std::string text;     // of a call: its arguments, JSON
  std::string name;     // of a call: the function's
  std::string call_id;  // of a call
};

// Gathers pieces of an answer into items, and tells of each step.
//
// Threads: one at a time.
class AnswerItems {
 public:
  // Hears of an answer in order: each item begins, grows and ends before the next one.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnItemBegin(size_t index, const AnswerItem& item) = 0;
    virtual void OnItemText(size_t index, const AnswerItem& item, std::string_view text) = 0;
    virtual void OnItemEnd(size_t index, const AnswerItem& item) = 0;
  };

  // REQUIRES: `listener` outlives this.
  AnswerItems(const AnswerReaderOptions& options, Listener* listener)
      : tool_form_(options.tool_form), reader_(options), listener_(listener) {}

  // `completion_tokens`: so far, this text's included.
  void Append(std::string_view text, int64_t completion_tokens);
  // The answer has ended.
  void Finish();

  const std::vector<AnswerItem>& items() const { return items_; }
  int num_calls() const { return reader_.num_calls(); }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void Add(const std::vector<AnswerPiece>& pieces);
  void AddText(AnswerItem::Kind kind, std::string_view text);
  void Begin(AnswerItem item);
  void End();

  const ToolForm tool_form_;
  AnswerReader reader_;
  Listener* const listener_;
  std::vector<AnswerItem> items_;
  bool is_open_ = false;  // the last one
  int64_t reasoning_tokens_ = 0;
};

}  // namespace retroinfer::gateway
