#include "http_gateway/worker/model_watch.h"

#include <gtest/gtest.h>

#include "tests/support/worker_harness.h"

namespace retroinfer::gateway {
namespace {

TEST(ModelWatch, KnowsFormsOfCallsByThePrompt) {
  EXPECT_EQ(ToolFormOfPrompt("within <tool_call></tool_call> XML tags"), ToolForm::kHermes);
  EXPECT_EQ(ToolFormOfPrompt("<tool_call>\n<function=name>"), ToolForm::kQwenCoder);
  EXPECT_EQ(ToolFormOfPrompt("Respond in the format {\"name\": function name, \"parameters\": "
                             "dictionary of argument name and its value}"),
            ToolForm::kLlama);
  EXPECT_EQ(ToolFormOfPrompt("[TOOL_CALLS] [{\"name\""), ToolForm::kMistral);
  EXPECT_EQ(ToolFormOfPrompt("[TOOL_CALLS]look_up[ARGS]{}"), ToolForm::kMistralArgs);
  EXPECT_EQ(ToolFormOfPrompt("call look_up"), ToolForm::kNone);
}

TEST(ModelWatch, KnowsThoughtsByThePrompt) {
  EXPECT_EQ(ThinkingOfPrompt("<|im_start|>assistant\n<think>\n"), ThinkingOpening::kOpened);
  EXPECT_EQ(ThinkingOfPrompt("<|im_start|>assistant\n<think>\n\n</think>\n\n"),
            ThinkingOpening::kClosed);
  EXPECT_EQ(ThinkingOfPrompt("<|im_start|>assistant\n"), ThinkingOpening::kUnknown);
}

// Asks once and runs `io` until the answer.
absl::StatusOr<std::shared_ptr<const ModelState>> Ask(ModelWatch& watch, bool with_chat,
                                                      boost::asio::io_context& io) {
  absl::StatusOr<std::shared_ptr<const ModelState>> result = absl::UnknownError("no answer");
  bool done = false;
  watch.Get(with_chat, [&](const auto& state) {
    result = state;
    done = true;
  });
  io.restart();
  while (!done) io.run_one_for(std::chrono::seconds(1));
  return result;
}

TEST(ModelWatch, LearnsWhatTheTemplateShows) {
  WorkerHarness::Settings settings;
  settings.serve = false;
  WorkerHarness worker(settings);
  const auto tokenizer = MakeByteTokenizer(
      {.chat_template =
           "{% if tools %}<tool_call>{% endif %}{{ messages[0].content }}"
           "{% if enable_thinking is defined and not enable_thinking %}</think>{% else %}"
           "<think>\n{% endif %}"});
  const ChatTemplate chat = ChatTemplate::Create(*tokenizer);
  worker.model().tokenizer = tokenizer.get();
  worker.model().chat_template = &chat;
  worker.Serve();
  boost::asio::io_context io;
  const auto work = boost::asio::make_work_guard(io);
  auto client = WorkerClient::Create({.address = worker.address()}, io);
  ASSERT_TRUE(client.ok());
  ModelWatch watch(**client);
  const auto state = Ask(watch, true, io);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ((*state)->info.model_name(), "fake-model");
  EXPECT_TRUE((*state)->has_chat);
  EXPECT_EQ((*state)->chat.tool_form, ToolForm::kHermes);
  EXPECT_EQ((*state)->chat.Thinking(std::nullopt), ThinkingOpening::kOpened);
  EXPECT_EQ((*state)->chat.Thinking(true), ThinkingOpening::kOpened);
  EXPECT_EQ((*state)->chat.Thinking(false), ThinkingOpening::kClosed);
  EXPECT_FALSE((*state)->chat.MayThink(false));
  EXPECT_EQ(*Ask(watch, true, io), *state);  // as it was, without asking again
}

TEST(ModelWatch, TellsThatThereIsNoWorker) {
  boost::asio::io_context io;
  const auto work = boost::asio::make_work_guard(io);
  auto client = WorkerClient::Create({.address = "unix:/nothing/here.sock"}, io);
  ASSERT_TRUE(client.ok());
  ModelWatch watch(**client);
  EXPECT_TRUE(absl::IsUnavailable(Ask(watch, true, io).status()));
  EXPECT_TRUE(absl::IsUnavailable(Ask(watch, false, io).status()));
}

}  // namespace
}  // namespace retroinfer::gateway
