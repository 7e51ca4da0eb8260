#include "http_gateway/api/answer_items.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace retroinfer::gateway {
namespace {

// Writes down what it hears.
class Log : public AnswerItems::Listener {
 public:
  void OnItemBegin(size_t index, const AnswerItem& item) override {
    absl::StrAppend(&text_, "[", index, Kind(item), item.name);
  }
  void OnItemText(size_t /*index*/, const AnswerItem& /*item*/, std::string_view text) override {
    absl::StrAppend(&text_, "|", std::string(text));
  }
  void OnItemEnd(size_t index, const AnswerItem& item) override {
    absl::StrAppend(&text_, "=", item.text, ";", index, "]");
  }
  const std::string& text() const { return text_; }

 private:
  static const char* Kind(const AnswerItem& item) {
    return item.kind == AnswerItem::Kind::kThoughts ? "thoughts"
           : item.kind == AnswerItem::Kind::kText   ? "text"
                                                    : "call ";
  }

  std::string text_;
};

AnswerReaderOptions Options() {
  AnswerReaderOptions options;
  options.tool_form = ToolForm::kHermes;
  options.functions = CallableFunctions::Named({"f"});
  options.splitter.emplace(false);
  return options;
}

TEST(AnswerItems, EndEachBeforeTheNextBegins) {
  Log log;
  AnswerItems items(Options(), &log);
  items.Append("<think>so", 3);
  items.Append("</think>", 4);
  items.Append("Hello", 5);
  items.Append(R"(<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>)", 9);
  items.Finish();
  EXPECT_TRUE(log.text().starts_with("[0thoughts|so=so;0][1text|Hello=Hello;1][2call f|"))
      << log.text();
  EXPECT_TRUE(log.text().ends_with(";2]")) << log.text();
  ASSERT_EQ(items.items().size(), 3U);
  EXPECT_FALSE(items.items()[2].call_id.empty());
  EXPECT_EQ(items.num_calls(), 1);
  EXPECT_EQ(items.reasoning_tokens(), 4);
}

TEST(AnswerItems, AnEmptyAnswerHasNone) {
  Log log;
  AnswerItems items(Options(), &log);
  items.Append("", 0);
  items.Finish();
  EXPECT_TRUE(items.items().empty());
  EXPECT_EQ(log.text(), "");
  EXPECT_EQ(items.reasoning_tokens(), 0);
}

}  // namespace
}  // namespace retroinfer::gateway
