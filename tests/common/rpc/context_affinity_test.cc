#include "common/rpc/context_affinity.h"

#include <gtest/gtest.h>

#include <string>

namespace retroinfer::common {
namespace {

using generation::v1::GenerateRequest;

GenerateRequest TextRequest(const std::string& text) {
  GenerateRequest request;
  request.set_text(text);
  return request;
}

TEST(ContextAffinity, IsWhatOtherClientsCompute) {
  // printf abc | sha256sum | head -c 16
  EXPECT_EQ(ContextAffinity("abc"), "ba7816bf8f01cfea");
  EXPECT_EQ(ContextAffinity(TextRequest("abc")), "ba7816bf8f01cfea");
  EXPECT_EQ(ContextAffinity(""), "e3b0c44298fc1c14");
  GenerateRequest ids;
  ids.mutable_token_ids()->add_ids(0x636261);  // "abc" and a zero byte
  EXPECT_EQ(ContextAffinity(ids), ContextAffinity(std::string("abc\0", 4)));
}

TEST(ContextAffinity, ScoringIsAboutItsContext) {
  generation::v1::ScoreRequest score;
  score.set_text("abc");
  score.add_continuations()->set_text("x");
  EXPECT_EQ(ContextAffinity(score), ContextAffinity("abc"));
}

TEST(ContextAffinity, QuestionsBehindADocumentDoNotCount) {
  const std::string document(kContextAffinityBytes, 'x');
  const std::string first = ContextAffinity(TextRequest(document + "Who?"));
  EXPECT_EQ(ContextAffinity(TextRequest(document + "Where?")), first);
  EXPECT_EQ(ContextAffinity(document), first);
  std::string other = document;
  other.back() = 'y';
  EXPECT_NE(ContextAffinity(TextRequest(other + "Who?")), first);
  other = document;
  other.front() = 'y';
  EXPECT_NE(ContextAffinity(TextRequest(other + "Who?")), first);
}

TEST(ContextAffinity, AConversationKeepsItsName) {
  GenerateRequest request;
  auto* const system = request.mutable_messages()->add_messages();
  system->set_role("system");
  system->set_content(std::string(kContextAffinityBytes, 'x'));
  const std::string first = ContextAffinity(request);
  auto* const user = request.mutable_messages()->add_messages();
  user->set_role("user");
  user->set_content("Who?");
  EXPECT_EQ(ContextAffinity(request), first);
  system->set_role("user");
  EXPECT_NE(ContextAffinity(request), first);
  request.mutable_token_ids();  // another input, and none of the messages
  EXPECT_EQ(ContextAffinity(request), ContextAffinity(""));
}

TEST(ContextAffinity, EachTurnOfAShortConversationHasTheNameOfTheFirst) {
  GenerateRequest request;
  const auto say = [&request](const std::string& role, const std::string& content) {
    auto* const message = request.mutable_messages()->add_messages();
    message->set_role(role);
    message->set_content(content);
  };
  say("system", "Be brief.");
  say("user", "Who?");
  const std::string first = ContextAffinity(request);
  EXPECT_EQ(first, ContextAffinity("system\nBe brief.\nuser\nWho?\n"));
  say("assistant", "Ishmael.");
  say("user", "Where?");
  EXPECT_EQ(ContextAffinity(request), first);
  request.mutable_messages()->mutable_messages(1)->set_content("What?");
  EXPECT_NE(ContextAffinity(request), first) << "another conversation";
}

TEST(CheckContextAffinity, AllowsWhatAHeaderMayHold) {
  EXPECT_TRUE(CheckContextAffinity("handbook-2.1_de:x").ok());
  EXPECT_TRUE(CheckContextAffinity(std::string(128, 'a')).ok());
  for (const std::string& name : {std::string(), std::string(129, 'a'), std::string("a b"),
                                  std::string("a\n"), std::string("\xC3\xA4")}) {
    EXPECT_EQ(CheckContextAffinity(name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

}  // namespace
}  // namespace retroinfer::common
