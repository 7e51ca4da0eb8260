#include "http_gateway/api/conversation_builder.h"

#include <utility>

namespace retroinfer::gateway {
namespace {

void AddLine(std::string_view text, std::string* lines) {
  if (!lines->empty()) lines->push_back('\n');
  lines->append(text);
}

}  // namespace

generation::v1::Message* ConversationBuilder::Add(const char* role) {
  generation::v1::Message* const message = conversation_->add_messages();
  message->set_role(role);
  return message;
}

void ConversationBuilder::AddMessage(const std::string& role, std::string text) {
  Finish();
  const int size = conversation_->messages_size();
  if (role == "system" && size > 0 && conversation_->messages(size - 1).role() == role) {
    conversation_->mutable_messages(size - 1)->mutable_content()->append("\n\n").append(text);
    return;
  }
  Add(role.c_str())->set_content(std::move(text));
}

void ConversationBuilder::AddAnswer(std::string_view text) {
  has_turn_ = has_answer_ = true;
  AddLine(text, &answer_);
}

void ConversationBuilder::AddThoughts(std::string_view text) {
  // Thoughts come before what they lead to.
  if (has_answer_ || !calls_.empty()) Finish();
  has_turn_ = true;
  AddLine(text, &thoughts_);
}

void ConversationBuilder::AddCall(const std::string& id, const std::string& name, Json arguments) {
  has_turn_ = true;
  calls_.push_back({{"id", id},
                    {"type", "function"},
                    {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
}

void ConversationBuilder::AddResult(const std::string& call_id, std::string text) {
  Finish();
  generation::v1::Message* const message = Add("tool");
  message->set_tool_call_id(call_id);
  message->set_content(std::move(text));
}

void ConversationBuilder::Finish() {
  if (!std::exchange(has_turn_, false)) return;
  generation::v1::Message* const message = Add("assistant");
  if (has_answer_ || calls_.empty()) message->set_content(std::exchange(answer_, ""));
  message->set_reasoning_content(std::exchange(thoughts_, ""));
  if (!calls_.empty()) message->set_tool_calls(calls_.dump());
  has_answer_ = false;
  calls_ = Json::array();
}

}  // namespace retroinfer::gateway
