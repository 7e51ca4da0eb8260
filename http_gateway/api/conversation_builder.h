// Makes messages of what other APIs have instead: items, or blocks within messages.
#pragma once

#include <string>
#include <string_view>

#include "http_gateway/json/strict_json.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

// What an assistant thought, said and called in one turn becomes one message; everything else ends
// it.
//
// Threads: one.
class ConversationBuilder {
 public:
  // REQUIRES: `conversation` outlives this.
  explicit ConversationBuilder(generation::v1::Messages* conversation)
      : conversation_(conversation) {}

  // `role`: system or user. Instructions that follow each other become one message: some templates
  // take one alone, at the beginning.
  void AddMessage(const std::string& role, std::string text);
  // Several texts of a turn become lines.
  void AddAnswer(std::string_view text);
  void AddThoughts(std::string_view text);
  // `arguments`: a JSON text, or an object.
  void AddCall(const std::string& id, const std::string& name, Json arguments);
  void AddResult(const std::string& call_id, std::string text);
  // To be called at the end.
  void Finish();

 private:
  generation::v1::Message* Add(const char* role);

  generation::v1::Messages* const conversation_;

  // Of the turn that has not ended.
  bool has_turn_ = false;
  bool has_answer_ = false;
  std::string answer_;
  std::string thoughts_;
  Json calls_ = Json::array();
};

}  // namespace retroinfer::gateway
