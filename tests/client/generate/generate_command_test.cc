#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "client/command/commands.h"
#include "client/command/exit_code.h"
#include "tests/client/command_runner.h"
#include "tests/support/worker_harness.h"

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class GenerateCommandTest : public ::testing::Test {
 protected:
  CommandResult Run(std::vector<std::string> arguments, const std::string& input = "") {
    arguments.insert(arguments.begin(), {"generate", "--address", worker_.address()});
    return RunCommand(GenerateCommand, arguments, input);
  }
  std::string LastPrompt() {
    const GenerationRequest request = worker_.engine().last_request();
    return std::string(request.prompt.begin(), request.prompt.end());
  }

  WorkerHarness worker_;
};

TEST_F(GenerateCommandTest, StreamsTextAndExplainsOnStderr) {
  const CommandResult result = Run({"a", "--max-tokens", "3"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(result.out, "98 99 100 \n");
  EXPECT_THAT(result.err, HasSubstr("prefill 100% (1 of 1 tokens"));
  EXPECT_THAT(result.err, HasSubstr("[length, 1 prompt tokens, 3 generated, first token after "
                                    "0.00 s, 1.5 ms/token, read 25.0% of the KV cache]"));
}

TEST_F(GenerateCommandTest, QuietSaysNothingButTheText) {
  const CommandResult result = Run({"a", "--max-tokens", "2", "--quiet"});
  EXPECT_EQ(result.out, "98 99 \n");
  EXPECT_EQ(result.err, "");
}

TEST_F(GenerateCommandTest, FlagsReachTheEngine) {
  const CommandResult result = Run({"a",
                                    "--max-tokens=3",
                                    "--min-tokens=2",
                                    "--temperature=0",
                                    "--top-p=0.9",
                                    "--top-k=5",
                                    "--min-p=0.1",
                                    "--repetition-penalty=1.2",
                                    "--frequency-penalty=0.1",
                                    "--presence-penalty=0.2",
                                    "--seed=18446744073709551615",
                                    "--stop=x",
                                    "--stop=yy",
                                    "--ignore-eos",
                                    "--policy=full",
                                    "--prefill=indexed",
                                    "--tail-tokens=90",
                                    "--retrieval-ratio=0.5",
                                    "--estimation-ratio=0.25",
                                    "--streaming-window=640",
                                    "--max-unseen-mass=0",
                                    "--request-id=mine",
                                    "--priority=-3",
                                    "--timeout=90s"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  const GenerationRequest request = worker_.engine().last_request();
  EXPECT_EQ(request.request_id, "mine");
  EXPECT_EQ(request.priority, -3);
  EXPECT_LT(request.deadline, absl::Now() + absl::Seconds(91));
  EXPECT_EQ(request.attention.policy, PolicyKind::kFull);
  EXPECT_EQ(request.attention.retrieval_ratio, 0.5);
  EXPECT_EQ(request.attention.estimation_ratio, 0.25);
  EXPECT_EQ(request.attention.streaming_window, 640);
  EXPECT_EQ(request.attention.prefill, PrefillKind::kIndexed);
  EXPECT_EQ(request.attention.tail_tokens, 90);
  const SamplingParams& sampling = request.sampling;
  EXPECT_EQ(sampling.max_tokens, 3);
  EXPECT_EQ(sampling.min_tokens, 2);
  EXPECT_EQ(sampling.temperature, 0.0f);
  EXPECT_EQ(sampling.top_p, 0.9f);
  EXPECT_EQ(sampling.top_k, 5);
  EXPECT_EQ(sampling.seed, 18446744073709551615u);
  EXPECT_THAT(sampling.stop, ::testing::ElementsAre("x", "yy"));
  EXPECT_TRUE(sampling.ignore_eos);
}

TEST_F(GenerateCommandTest, ThePromptComesFromArgumentFileOrStdin) {
  Run({"argument"});
  EXPECT_EQ(LastPrompt(), "argument");
  Run({}, "piped in");
  EXPECT_EQ(LastPrompt(), "piped in");
  Run({"-"}, "piped, too");
  EXPECT_EQ(LastPrompt(), "piped, too");
  const std::string file = (worker_.folder() / "document.txt").string();
  std::ofstream(file) << "the document";
  Run({"--file", file});
  EXPECT_EQ(LastPrompt(), "the document");
  Run({"--file", file, "a question"});
  EXPECT_EQ(LastPrompt(), "the document\na question");
}

TEST_F(GenerateCommandTest, ChatAndSystemGoThroughTheTemplate) {
  Run({"hello", "--chat", "--system", "be brief"});
  EXPECT_THAT(LastPrompt(), HasSubstr("be brief"));
  EXPECT_THAT(LastPrompt(), HasSubstr("hello"));
  EXPECT_NE(LastPrompt(), "hello");
}

TEST_F(GenerateCommandTest, AsksAsAChatUnlessToldToContinueTheText) {
  const auto tokenizer = MakeByteTokenizer({.chat_template = "<{{ messages[0].content }}>"});
  const ChatTemplate in_brackets = ChatTemplate::Create(*tokenizer);
  worker_.model().chat_template = &in_brackets;
  EXPECT_EQ(Run({"hello"}).exit_code, kExitOk);
  EXPECT_EQ(LastPrompt(), "<hello>");
  EXPECT_EQ(Run({"hello", "--chat"}).exit_code, kExitOk);
  EXPECT_EQ(LastPrompt(), "<hello>");
  EXPECT_EQ(Run({"hello", "--raw"}).exit_code, kExitOk);
  EXPECT_EQ(LastPrompt(), "hello");
  EXPECT_EQ(Run({"hello", "--raw", "--chat"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"hello", "--raw", "--system", "be brief"}).exit_code, kExitUsage);
}

TEST_F(GenerateCommandTest, AModelWithoutATemplateContinuesTheTextAndSaysSo) {
  const auto tokenizer = MakeByteTokenizer();
  const ChatTemplate none = ChatTemplate::Create(*tokenizer);
  worker_.model().chat_template = &none;
  const CommandResult result = Run({"a", "--max-tokens", "3"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(result.out, "98 99 100 \n");
  EXPECT_THAT(result.err, HasSubstr("no chat template"));
  EXPECT_EQ(LastPrompt(), "a");
  EXPECT_EQ(Run({"a", "--max-tokens", "1", "--quiet"}).err, "");
  const CommandResult chat = Run({"a", "--chat"});
  EXPECT_EQ(chat.exit_code, kExitFailed);
  EXPECT_THAT(chat.err, HasSubstr("FAILED_PRECONDITION CHAT_TEMPLATE"));
  EXPECT_EQ(Run({"a", "--system", "be brief"}).exit_code, kExitFailed);
}

// The answer to a prompt without the template would look like the model's best.
TEST_F(GenerateCommandTest, ATemplateThatCannotBeRunIsToldInsteadOfPassedBy) {
  const auto tokenizer = MakeByteTokenizer({.chat_template = "{% if %}"});
  const ChatTemplate broken = ChatTemplate::Create(*tokenizer);
  worker_.model().chat_template = &broken;
  const CommandResult result = Run({"a"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("CHAT_TEMPLATE"));
  EXPECT_EQ(Run({"a", "--raw"}).exit_code, kExitOk);
}

TEST_F(GenerateCommandTest, JsonHasTextAndStatistics) {
  const CommandResult result =
      Run({"a", "--max-tokens", "3", "--json", "--policy", "wave", "--seed", "5"});
  EXPECT_EQ(result.exit_code, kExitOk);
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["text"], "98 99 100 ");
  EXPECT_EQ(json["token_ids"], (std::vector<int>{98, 99, 100}));
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["prompt_tokens"], 1);
  EXPECT_EQ(json["completion_tokens"], 3);
  EXPECT_EQ(json["seed"], 5);
  EXPECT_EQ(json["policy"], "wave");
  EXPECT_DOUBLE_EQ(json["ttft_s"], 0.002);
  EXPECT_DOUBLE_EQ(json["ms_per_token"], 1.5);
  EXPECT_DOUBLE_EQ(json["kv_read_ratio"], 0.25);
}

TEST_F(GenerateCommandTest, JsonFileComesBesidesTheText) {
  const std::string file = (worker_.folder() / "stats.json").string();
  const CommandResult result = Run({"a", "--max-tokens", "1", "--json-file", file});
  EXPECT_EQ(result.out, "98 \n");
  std::ifstream stream(file);
  EXPECT_EQ(nlohmann::json::parse(stream)["completion_tokens"], 1);
  EXPECT_EQ(Run({"a", "--json-file", "/no/such/folder/x"}).exit_code, kExitFailed);
}

TEST_F(GenerateCommandTest, SeveralContinuationsAreKeptApart) {
  CommandResult result = Run({"a", "--n", "2", "--max-tokens", "2"});
  EXPECT_EQ(result.out, "--- 0\n98 99 \n--- 1\n98 99 \n");
  result = Run({"a", "--n", "2", "--max-tokens", "2", "--json"});
  EXPECT_EQ(nlohmann::json::parse(result.out)["continuations"].size(), 2u);
}

TEST_F(GenerateCommandTest, AFailedRequestSaysWhy) {
  const CommandResult result = Run({std::string(4000, 'x'), "--max-tokens", "97"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("retroinfer generate: The prompt is too long"));
  EXPECT_THAT(result.err, HasSubstr("[INVALID_ARGUMENT CONTEXT_TOO_LONG]"));
}

TEST_F(GenerateCommandTest, UsageErrorsAreTold) {
  EXPECT_EQ(Run({"a", "--nonsense"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"a", "--policy", "quest"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"a", "--timeout", "soon"}).exit_code, kExitUsage);
  const CommandResult missing = Run({"--file", "/no/such/file"});
  EXPECT_EQ(missing.exit_code, kExitUsage);
  EXPECT_THAT(missing.err, HasSubstr("/no/such/file"));
  EXPECT_EQ(Run({"a", "--api-key-file", "/no/such/file"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"a", "--tls-key", "/k"}).exit_code, kExitUsage);
}

TEST_F(GenerateCommandTest, NobodyAtTheAddressIsExplained) {
  const CommandResult result =
      RunCommand(GenerateCommand, {"generate", "a", "--address", "unix:/no/such/socket"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("no worker answers at unix:/no/such/socket"));
  EXPECT_THAT(result.err, HasSubstr("retroinfer serve"));
}

TEST_F(GenerateCommandTest, TheEnvironmentGivesDefaults) {
  ::setenv("RETROINFER_MAX_TOKENS", "2", 1);
  EXPECT_EQ(Run({"a"}).out, "98 99 \n");
  EXPECT_EQ(Run({"a", "--max-tokens", "1"}).out, "98 \n");
  ::unsetenv("RETROINFER_MAX_TOKENS");
}

TEST_F(GenerateCommandTest, ASignalCancelsTheRequest) {
  worker_.engine().Hold(true);
  std::thread interrupter([this] {
    worker_.engine().AwaitLive(1);
    ::kill(::getpid(), SIGINT);
  });
  const CommandResult result = Run({"a"});
  interrupter.join();
  EXPECT_EQ(result.exit_code, 130);  // what a shell expects after Ctrl-C
  EXPECT_THAT(result.err, HasSubstr("interrupted"));
  EXPECT_TRUE(worker_.engine().AwaitLive(0));
}

TEST_F(GenerateCommandTest, AnAnswerThatTheServerCutIsAFailure) {
  worker_.engine().Hold(true);
  std::thread aborter([this] {
    worker_.engine().AwaitLive(1);
    worker_.engine().Abort(worker_.engine().last_request().request_id);
  });
  const CommandResult result = Run({"a"});
  aborter.join();
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("[cancelled"));
  EXPECT_THAT(result.err, HasSubstr("ended the answer before it was complete"));
}

TEST_F(GenerateCommandTest, FilesThatCannotBeReadOrWrittenAreNamed) {
  const CommandResult result = Run({"a", "--max-tokens=1", "--json-file=/dev/full"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("writing /dev/full: No space left"));
  const std::string fifo = absl::StrCat(testing::TempDir(), "generate_fifo_", ::getpid());
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const CommandResult from_fifo = Run({"--file", fifo});
  EXPECT_EQ(from_fifo.exit_code, kExitUsage);
  EXPECT_THAT(from_fifo.err, HasSubstr("is a FIFO"));
  const CommandResult to_fifo = Run({"a", "--max-tokens=1", "--json-file", fifo});
  EXPECT_EQ(to_fifo.exit_code, kExitFailed);
  EXPECT_THAT(to_fifo.err, HasSubstr("a FIFO that nobody reads"));
  ::unlink(fifo.c_str());
}

TEST_F(GenerateCommandTest, TextThatNobodyTakesEndsTheRequest) {
  const std::string address = worker_.address();
  const char* const argv[] = {"generate", "a", "--address", address.c_str(), "--max-tokens=2000"};
  char* text = nullptr;
  size_t size = 0;
  Streams streams;
  streams.out = std::fopen("/dev/full", "w");
  streams.err = ::open_memstream(&text, &size);
  EXPECT_EQ(GenerateCommand(5, argv, streams), kExitFailed);
  std::fclose(streams.out);
  std::fclose(streams.err);
  EXPECT_THAT(std::string(text, size), HasSubstr("writing the standard output: No space left"));
  std::free(text);
  EXPECT_TRUE(worker_.engine().AwaitLive(0));
}

}  // namespace
}  // namespace retroinfer::client

// Signals go to the thread that waits for them: the others must block them from the beginning.
int main(int argc, char** argv) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
