#include "common/log/log_line.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace retroinfer::common {
namespace {

const absl::Time kTime = absl::FromUnixMillis(1'795'317'586'120);  // 2026-11-22 03:19:46.120, UTC

TEST(TextLogLines, HaveTimeLevelAndProcess) {
  EXPECT_EQ(TextLogLines({kTime, "info", "gpu_worker", "serving"}),
            "2026-11-22T03:19:46.120Z info gpu_worker: serving\n");
  EXPECT_EQ(TextLogLines({kTime, "info", "p", ""}), "2026-11-22T03:19:46.120Z info p: \n");
}

TEST(TextLogLines, EachLineOfAMessageHasThem) {
  EXPECT_EQ(TextLogLines({kTime, "error", "p", "one\ntwo\n"}),
            "2026-11-22T03:19:46.120Z error p: one\n"
            "2026-11-22T03:19:46.120Z error p: two\n");
}

TEST(TextLogLines, ControlCharactersAreEscaped) {
  EXPECT_EQ(TextLogLines({kTime, "info", "p", "a\x1b[2J\rb\tc\xc3\xa4"}),
            "2026-11-22T03:19:46.120Z info p: a\\x1b[2J\\x0db\tc\xc3\xa4\n");
}

TEST(JsonLogLine, IsOneObjectWhateverTheMessageIs) {
  const std::string line = JsonLogLine({kTime, "warning", "gpu_worker", "a \"b\"\nc\xff"});
  ASSERT_EQ(line.find('\n'), line.size() - 1);
  const nlohmann::json json = nlohmann::json::parse(line);
  EXPECT_EQ(json.size(), 4u);
  EXPECT_EQ(json["time"], "2026-11-22T03:19:46.120Z");
  EXPECT_EQ(json["level"], "warning");
  EXPECT_EQ(json["process"], "gpu_worker");
  EXPECT_EQ(json["message"], "a \"b\"\nc\xef\xbf\xbd");
}

}  // namespace
}  // namespace retroinfer::common
