#include "text/tokenizer/tokenizer_config.h"

#include <gtest/gtest.h>

#include "tests/text/tokenizer/tokenizer_fixtures.h"

namespace retroinfer {
namespace {

TEST(TokenizerConfigTest, AbsentFilesSayNothing) {
  const TemporaryFolder folder;
  const auto config = ReadTokenizerConfig(folder.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->bos_token.has_value() || config->eos_token.has_value());
  EXPECT_FALSE(config->chat_template.has_value());
}

TEST(TokenizerConfigTest, ReadsBothFormsOfTokensAndTemplates) {
  const TemporaryFolder folder;
  folder.Write("tokenizer_config.json",
               R"({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false},
                   "chat_template": "plain", "model_max_length": 1000000000000000019884624838656})");
  auto config = ReadTokenizerConfig(folder.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->bos_token, "<s>");
  EXPECT_EQ(config->eos_token, "</s>");
  EXPECT_EQ(config->chat_template, "plain");

  folder.Write("tokenizer_config.json",
               R"({"bos_token": null, "chat_template": [{"name": "rag", "template": "r"},
                   {"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  config = ReadTokenizerConfig(folder.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->bos_token.has_value());
  EXPECT_EQ(config->chat_template, "d");
  EXPECT_EQ(config->tool_template, "t");
  EXPECT_EQ(config->template_source, "tokenizer_config.json");

  folder.Write("chat_template.jinja", "of its own");
  config = ReadTokenizerConfig(folder.path());
  EXPECT_EQ(config->chat_template, "of its own");
  EXPECT_EQ(config->tool_template, std::nullopt);
  EXPECT_EQ(config->template_source, "chat_template.jinja");
  std::filesystem::create_directory(folder.path() / "additional_chat_templates");
  folder.Write("additional_chat_templates/tool_use.jinja", "with tools");
  EXPECT_EQ(ReadTokenizerConfig(folder.path())->tool_template, "with tools");
}

TEST(TokenizerConfigTest, AFileOfAProcessorComesLast) {
  const TemporaryFolder folder;
  folder.Write("chat_template.json", R"({"chat_template": "p"})");
  EXPECT_EQ(ReadTokenizerConfig(folder.path())->chat_template, "p");
  EXPECT_EQ(ReadTokenizerConfig(folder.path())->template_source, "chat_template.json");
  folder.Write("tokenizer_config.json", R"({"chat_template": "t"})");
  EXPECT_EQ(ReadTokenizerConfig(folder.path())->chat_template, "t");
}

TEST(TokenizerConfigTest, SpecialTokensHaveTheirNames) {
  const TemporaryFolder folder;
  folder.Write("tokenizer_config.json",
               R"({"bos_token": "<s>", "pad_token": {"content": "<p>"}, "unk_token": null})");
  const auto config = ReadTokenizerConfig(folder.path());
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->special_tokens, (std::vector<std::pair<std::string, std::string>>{
                                        {"bos_token", "<s>"}, {"pad_token", "<p>"}}));
}

TEST(TokenizerConfigTest, MalformedFilesAreRefused) {
  const TemporaryFolder folder;
  for (const char* const text :
       {"", "[]", R"({"bos_token": 1})", R"({"eos_token": {"text": "x"}})",
        R"({"chat_template": 5})", R"({"chat_template": [{"name": "default"}]})",
        R"({"chat_template": ["x"]})"}) {
    folder.Write("tokenizer_config.json", text);
    EXPECT_EQ(ReadTokenizerConfig(folder.path()).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
  folder.Write("tokenizer_config.json",
               absl::StrCat("{\"chat_template\": \"", std::string(2'000'000, 'x'), "\"}"));
  EXPECT_FALSE(ReadTokenizerConfig(folder.path()).ok());
  folder.Write("tokenizer_config.json", "{}");
  folder.Write("chat_template.json", R"({"chat_template": 7})");
  EXPECT_FALSE(ReadTokenizerConfig(folder.path()).ok());
  std::filesystem::remove(folder.path() / "chat_template.json");
  folder.Write("chat_template.jinja", std::string(2'000'000, 'x'));
  EXPECT_FALSE(ReadTokenizerConfig(folder.path()).ok());
}

}  // namespace
}  // namespace retroinfer
