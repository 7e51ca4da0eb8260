#include "common/config/option_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "common/config/settings.h"

namespace retroinfer::common {
namespace {

using ::testing::ElementsAre;

class OptionListTest : public ::testing::Test {
 protected:
  OptionListTest() : settings_("What the program does", "1.2.3") {
    CLI::App& app = settings_.app();
    app.add_option("prompt", prompt_, "What to say")->required();
    app.add_option("-p,--policy", policy_, "How to attend")
        ->check(CLI::IsMember({"wave", "full"}))
        ->group("Attention");
    app.add_option("--mode", mode_, "How to keep")
        ->transform(CLI::CheckedTransformer(std::map<std::string, int>{{"on", 1}, {"off", 0}}));
    app.add_option("--threads", threads_, "Threads")->check(CLI::Range(1, 64));
    app.add_flag("--quiet", quiet_, "Say less");
    app.add_option("--secret", secret_, "Not shown")->group("");
    settings_.AddByteSize("--arena-bytes", &bytes_, "A size [of something]");
  }

  // What a program prints for the flag.
  nlohmann::json Listed() {
    const char* const argv[] = {"program", kOptionListFlag};
    ::testing::internal::CaptureStdout();
    const auto outcome = settings_.Parse(2, argv);
    const std::string text = ::testing::internal::GetCapturedStdout();
    EXPECT_TRUE(outcome.ok() && *outcome == Settings::Outcome::kExit);
    return nlohmann::json::parse(text);
  }
  static nlohmann::json Find(const nlohmann::json& list, const std::string& flag) {
    for (const nlohmann::json& option : list["options"]) {
      for (const std::string name : option["flags"]) {
        if (name == flag) return option;
      }
      if (option["name"] == flag) return option;
    }
    return nullptr;
  }

  Settings settings_;
  std::string prompt_, policy_ = "wave", secret_;
  int mode_ = 1, threads_ = 4;
  bool quiet_ = false;
  uint64_t bytes_ = uint64_t{2} << 30;
};

TEST_F(OptionListTest, SaysOfEachOptionWhatHelpSays) {
  const nlohmann::json list = Listed();
  EXPECT_EQ(list["description"], "What the program does");
  const nlohmann::json policy = Find(list, "--policy");
  EXPECT_THAT(policy["flags"], ElementsAre("--policy", "-p"));
  EXPECT_THAT(policy["choices"], ElementsAre("wave", "full"));
  EXPECT_EQ(policy["default"], "wave");
  EXPECT_EQ(policy["group"], "Attention");
  EXPECT_EQ(policy["help"], "How to attend");
  EXPECT_EQ(policy["environment"], "RETROINFER_POLICY");
  EXPECT_THAT(Find(list, "--mode")["choices"], ::testing::UnorderedElementsAre("on", "off"));
  EXPECT_TRUE(Find(list, "--threads")["choices"].empty());
  EXPECT_EQ(Find(list, "--threads")["value"], "INT");
  const nlohmann::json size = Find(list, "--arena-bytes");
  EXPECT_EQ(size["value"], "SIZE");
  EXPECT_EQ(size["default"], "2.00 GiB");
  EXPECT_EQ(size["help"], "A size [of something]");
}

TEST_F(OptionListTest, FlagsTakeNothingAndArgumentsHaveNames) {
  const nlohmann::json list = Listed();
  for (const char* const flag : {"--quiet", "--help", "--version"}) {
    EXPECT_EQ(Find(list, flag)["value"], "") << flag;
  }
  EXPECT_EQ(Find(list, "--config")["value"], "TEXT");
  const nlohmann::json prompt = Find(list, "prompt");
  EXPECT_TRUE(prompt["flags"].empty());
  EXPECT_EQ(prompt["required"], true);
  EXPECT_EQ(Find(list, "--secret"), nullptr);
  EXPECT_EQ(Find(list, "--help")["environment"], "");
}

}  // namespace
}  // namespace retroinfer::common
