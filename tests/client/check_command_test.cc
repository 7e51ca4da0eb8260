#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "build_paths.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "tests/client/command_runner.h"

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;

const char kModel[] = RETROINFER_SOURCE_DIR "/models/needle";

TEST(CheckCommand, TellsTheSplitAndTheLargestContext) {
  const CommandResult result =
      RunCommand(CheckCommand, {"check", kModel, "--memory=1GiB", "--arena-bytes=256MiB"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("Largest context: "));
  EXPECT_THAT(result.out, HasSubstr("KV capacity: "));
  EXPECT_THAT(result.out, HasSubstr("It fits."));
}

TEST(CheckCommand, PlansForAGpuThatIsSomewhereElse) {
  const CommandResult result =
      RunCommand(CheckCommand, {"check", kModel, "--gpu-memory=8GiB", "--arena-bytes=64MiB"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("(--gpu-memory)"));
  EXPECT_THAT(result.out, HasSubstr("(32768 slots)"));
}

TEST(CheckCommand, JsonIsForPrograms) {
  const CommandResult result =
      RunCommand(CheckCommand, {"check", kModel, "--memory=1GiB", "--arena-bytes=64MiB", "--json"});
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["fits"], true);
  EXPECT_GT(json["largest_context_tokens"], 1024);
  EXPECT_EQ(json["memory_bytes"], 1 << 30);
}

TEST(CheckCommand, SaysWhichChatTemplateThereIs) {
  std::string pattern = (std::filesystem::temp_directory_path() / "retroinfer-XXXXXX").string();
  const std::string folder = ::mkdtemp(pattern.data());
  const auto check = [&folder](const std::string& text) {
    std::ofstream(folder + "/chat.jinja") << text;
    return RunCommand(CheckCommand, {"check", kModel, "--memory=1GiB", "--arena-bytes=64MiB",
                                     "--chat-template=" + folder + "/chat.jinja"});
  };
  EXPECT_THAT(RunCommand(CheckCommand, {"check", kModel, "--memory=1GiB"}).out,
              HasSubstr("Chat     template of tokenizer_config.json\n"));
  const CommandResult good = check("{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_EQ(good.exit_code, kExitOk) << good.err;
  EXPECT_THAT(good.out, HasSubstr("Chat     template of " + folder + "/chat.jinja\n"));
  const CommandResult bad = check("text\n{% for m in messages %}");
  EXPECT_EQ(bad.exit_code, kExitFailed);
  EXPECT_THAT(bad.err, HasSubstr("--chat-template: "));
  EXPECT_THAT(bad.err, HasSubstr("line 2"));
  std::filesystem::remove_all(folder);
  EXPECT_EQ(RunCommand(CheckCommand, {"check", kModel, "--chat-template=/no/such"}).exit_code,
            kExitFailed);
}

TEST(CheckCommand, WhatDoesNotFitIsAFailure) {
  const CommandResult result =
      RunCommand(CheckCommand, {"check", kModel, "--memory=20MiB", "--arena-bytes=64MiB"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.out, HasSubstr("needs at least"));
}

TEST(CheckCommand, BadFoldersAndFlagsAreTold) {
  const CommandResult missing = RunCommand(CheckCommand, {"check", "/no/such/model"});
  EXPECT_EQ(missing.exit_code, kExitFailed);
  EXPECT_THAT(missing.err, HasSubstr("/no/such/model"));
  EXPECT_EQ(RunCommand(CheckCommand, {"check"}).exit_code, kExitUsage);
  EXPECT_EQ(RunCommand(CheckCommand, {"check", kModel, "--memory=lots"}).exit_code, kExitUsage);
}

}  // namespace
}  // namespace retroinfer::client
