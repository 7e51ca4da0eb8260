#include "client/generate/request_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace retroinfer::client {
namespace {

namespace v1 = generation::v1;

absl::Status Parse(std::vector<const char*> arguments, v1::GenerateRequest* request,
                   std::string* prompt) {
  arguments.insert(arguments.begin(), "generate");
  common::Settings settings("test", "1");
  settings.app().add_option("prompt", *prompt);
  AddRequestFlags(&settings, request);
  return settings.Parse(static_cast<int>(arguments.size()), arguments.data()).status();
}

TEST(RequestFlags, WithoutFlagsNothingIsSet) {
  v1::GenerateRequest request;
  std::string prompt;
  ASSERT_TRUE(Parse({"hello"}, &request, &prompt).ok());
  EXPECT_EQ(request.ByteSizeLong(), 0u);
}

TEST(RequestFlags, ZeroIsSet) {
  v1::GenerateRequest request;
  std::string prompt;
  ASSERT_TRUE(Parse({"--temperature=0", "--top-k=0", "--seed=0"}, &request, &prompt).ok());
  EXPECT_TRUE(request.sampling().has_temperature());
  EXPECT_TRUE(request.sampling().has_top_k());
  EXPECT_TRUE(request.sampling().has_seed());
  EXPECT_FALSE(request.sampling().has_top_p());
}

TEST(RequestFlags, StopLeavesThePromptAlone) {
  v1::GenerateRequest request;
  std::string prompt;
  ASSERT_TRUE(Parse({"--stop", "a", "--stop", "b", "the prompt"}, &request, &prompt).ok());
  EXPECT_THAT(request.sampling().stop(), ::testing::ElementsAre("a", "b"));
  EXPECT_EQ(prompt, "the prompt");
}

TEST(RequestFlags, AConstraintHasOneForm) {
  v1::GenerateRequest request;
  std::string prompt;
  ASSERT_TRUE(Parse({"--choice", "yes", "--choice=no", "the prompt"}, &request, &prompt).ok());
  EXPECT_THAT(request.constraint().choices().texts(), ::testing::ElementsAre("yes", "no"));
  EXPECT_EQ(prompt, "the prompt");
  ASSERT_TRUE(Parse({"--regex=[a-z]+"}, &request, &prompt).ok());
  EXPECT_EQ(request.constraint().regex(), "[a-z]+");
  ASSERT_TRUE(Parse({"--grammar", "root ::= \"a\""}, &request, &prompt).ok());
  EXPECT_EQ(request.constraint().grammar(), "root ::= \"a\"");
  EXPECT_FALSE(Parse({"--regex=a", "--choice=b"}, &request, &prompt).ok());
}

TEST(RequestFlags, ASchemaMayBeInAFile) {
  const std::string path = testing::TempDir() + "/request_flags_schema.json";
  std::ofstream(path) << R"({"type": "integer"})";
  v1::GenerateRequest request;
  std::string prompt;
  const std::string argument = "--json-schema=@" + path;
  ASSERT_TRUE(Parse({argument.c_str()}, &request, &prompt).ok());
  EXPECT_EQ(request.constraint().json_schema(), R"({"type": "integer"})");
  EXPECT_FALSE(Parse({"--json-schema=@/no/such/file"}, &request, &prompt).ok());
  std::filesystem::remove(path);
}

TEST(RequestFlags, LogitBiasesAreTokensAndNumbers) {
  v1::GenerateRequest request;
  std::string prompt;
  ASSERT_TRUE(
      Parse({"--logit-bias", "42=-3.5", "--logit-bias=7=100", "the prompt"}, &request, &prompt)
          .ok());
  ASSERT_EQ(request.sampling().logit_bias().size(), 2u);
  EXPECT_EQ(request.sampling().logit_bias().at(42), -3.5f);
  EXPECT_EQ(request.sampling().logit_bias().at(7), 100.0f);
  EXPECT_EQ(prompt, "the prompt");
  for (const char* bad : {"--logit-bias=7", "--logit-bias=a=1", "--logit-bias=7=b"}) {
    EXPECT_FALSE(Parse({bad}, &request, &prompt).ok()) << bad;
  }
}

TEST(RequestFlags, SpecialTokensAreParsedOnRequest) {
  v1::GenerateRequest request;
  std::string prompt;
  ASSERT_TRUE(Parse({"--parse-special", "x"}, &request, &prompt).ok());
  EXPECT_TRUE(request.parse_special());
}

TEST(RequestFlags, TimeoutsAreDurations) {
  v1::GenerateRequest request;
  std::string prompt;
  ASSERT_TRUE(Parse({"--timeout=1m30.5s"}, &request, &prompt).ok());
  EXPECT_EQ(request.timeout().seconds(), 90);
  EXPECT_EQ(request.timeout().nanos(), 500'000'000);
  for (const char* bad : {"--timeout=0s", "--timeout=-1s", "--timeout=7", "--timeout=inf"}) {
    EXPECT_FALSE(Parse({bad}, &request, &prompt).ok()) << bad;
  }
}

}  // namespace
}  // namespace retroinfer::client
