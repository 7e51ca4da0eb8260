#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "client/command/commands.h"
#include "client/command/connection.h"
#include "client/command/exit_code.h"
#include "tests/client/command_runner.h"
#include "tests/support/context_harness.h"

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;

class CacheCommandTest : public ::testing::Test {
 protected:
  CacheCommandTest() { std::ofstream(PathOf("doc.txt")) << std::string(2500, 'a'); }
  std::string PathOf(const std::string& name) {
    return (harness_.worker().folder() / name).string();
  }
  CommandResult Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "cache");
    if (arguments.size() > 1) {
      arguments.insert(arguments.end(), {"--address", harness_.worker().address()});
    }
    return RunCommand(CacheCommand, arguments);
  }

  ContextHarness harness_;
};

TEST_F(CacheCommandTest, SavesListsAndRemoves) {
  CommandResult result = Run({"save", "book", "--file", PathOf("doc.txt"), "--pin"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr("saved book: 2,500 tokens, 2,048 reusable, 3.00 MiB; computed "
                                    "2,500 tokens"));
  result = Run({"ls"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr("REUSABLE"));
  EXPECT_THAT(result.out, HasSubstr("disk         yes"));
  const auto json = nlohmann::json::parse(Run({"ls", "--json"}).out);
  EXPECT_EQ(json["contexts"][0]["name"], "book");
  EXPECT_EQ(json["contexts"][0]["tier"], "disk");
  EXPECT_EQ(json["contexts"][0]["pinned"], true);
  EXPECT_EQ(Run({"unpin", "book"}).out, "unpinned book\n");
  EXPECT_EQ(Run({"pin", "book"}).out, "pinned book\n");
  EXPECT_EQ(Run({"rm", "book"}).out, "removed book: 2 segments, 3.00 MiB\n");
  result = Run({"rm", "book"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("retroinfer cache rm: refused [NOT_FOUND NO_SUCH_CONTEXT]"));
}

TEST_F(CacheCommandTest, ANameThatIsTakenNeedsForce) {
  const std::vector<std::string> save = {"save", "book", "--file", PathOf("doc.txt")};
  ASSERT_EQ(Run(save).exit_code, kExitOk);
  const CommandResult refused = Run(save);
  EXPECT_EQ(refused.exit_code, kExitFailed);
  EXPECT_THAT(refused.err, HasSubstr("ALREADY_EXISTS CONTEXT_EXISTS"));
  std::vector<std::string> forced = save;
  forced.push_back("--force");
  EXPECT_EQ(Run(forced).exit_code, kExitOk);
}

TEST_F(CacheCommandTest, ASaltIsATenant) {
  ASSERT_EQ(Run({"save", "book", "--file", PathOf("doc.txt"), "--cache-salt", "s"}).exit_code,
            kExitOk);
  EXPECT_EQ(nlohmann::json::parse(Run({"ls", "--json"}).out)["contexts"].size(), 0u);
  EXPECT_EQ(
      nlohmann::json::parse(Run({"ls", "--json", "--cache-salt", "s"}).out)["contexts"].size(), 1u);
}

TEST_F(CacheCommandTest, MovesFiles) {
  ASSERT_EQ(Run({"save", "book", "--file", PathOf("doc.txt")}).exit_code, kExitOk);
  const std::string file = PathOf("book.ctx");
  CommandResult result = Run({"export", "book", file});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(*ReadWholeFile(file), "file of book");
  result = Run({"export", "book", file});
  EXPECT_EQ(result.exit_code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("--force"));
  EXPECT_EQ(Run({"export", "book", file, "--force"}).exit_code, kExitOk);
  result = Run({"import", file, "--name", "copy"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr("imported copy"));
  result = Run({"import", PathOf("doc.txt")});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("BAD_FILE"));
}

TEST_F(CacheCommandTest, WhatCannotBeImportedIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(PathOf("fifo").c_str(), 0600), 0);
  for (const std::string& path : {PathOf("fifo"), PathOf("none"), PathOf("")}) {
    const CommandResult result = Run({"import", path});
    EXPECT_EQ(result.exit_code, kExitUsage);
    EXPECT_THAT(result.err, HasSubstr(path));
  }
}

TEST_F(CacheCommandTest, AnExportThatFailsLeavesNoFile) {
  ASSERT_EQ(Run({"save", "damaged", "--file", PathOf("doc.txt")}).exit_code, kExitOk);
  EXPECT_EQ(Run({"export", "damaged", PathOf("out.ctx")}).exit_code, kExitFailed);
  EXPECT_FALSE(std::filesystem::exists(PathOf("out.ctx")));
  EXPECT_EQ(Run({"export", "none", PathOf("out.ctx")}).exit_code, kExitFailed);
  EXPECT_FALSE(std::filesystem::exists(PathOf("out.ctx")));
}

TEST_F(CacheCommandTest, DamageIsAFailureOfVerify) {
  ASSERT_EQ(Run({"save", "good", "--file", PathOf("doc.txt")}).exit_code, kExitOk);
  ASSERT_EQ(Run({"save", "damaged", "--file", PathOf("doc.txt")}).exit_code, kExitOk);
  EXPECT_EQ(Run({"verify", "good"}).out, "good: 2 of 2 segments intact, 1.00 MiB checked\n");
  const CommandResult result = Run({"verify", "damaged"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("segment 0123: wrong"));
}

TEST_F(CacheCommandTest, UsageErrorsAreToldApart) {
  EXPECT_EQ(Run({"frobnicate"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"save", "book"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"save", "book", "--file", "/no/such/file"}).exit_code, kExitUsage);
  EXPECT_EQ(Run({"import", "/no/such/file"}).exit_code, kExitUsage);
  EXPECT_EQ(RunCommand(CacheCommand, {"cache", "--help"}).exit_code, kExitOk);
  EXPECT_EQ(RunCommand(CacheCommand, {"cache", "ls", "--address", "unix:/no/such"}).exit_code,
            kExitFailed);
}

}  // namespace
}  // namespace retroinfer::client
