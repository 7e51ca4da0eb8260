#include "http_gateway/server/gateway_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace retroinfer::gateway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

absl::StatusOr<bool> Parse(std::vector<const char*> arguments, GatewaySettings* settings) {
  arguments.insert(arguments.begin(), "http_gateway");
  return ParseGatewaySettings(static_cast<int>(arguments.size()), arguments.data(), settings);
}

TEST(GatewaySettings, HasDefaultsForThisMachineAlone) {
  GatewaySettings settings;
  ASSERT_TRUE(Parse({}, &settings).ok());
  EXPECT_THAT(settings.server.addresses, ElementsAre("127.0.0.1:8000"));
  EXPECT_EQ(settings.worker.address, "127.0.0.1:50051");
  EXPECT_THAT(settings.gateway.cors_origins, IsEmpty());
  EXPECT_EQ(settings.server.limits.request.body_bytes_max, size_t{64} << 20);
  EXPECT_THAT(settings.warnings, IsEmpty());
}

TEST(GatewaySettings, ReadsOptionsAndKeys) {
  std::string folder = (std::filesystem::temp_directory_path() / "retroinfer-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/key") << " secret\n";
  std::ofstream(folder + "/empty") << "\n";
  const std::string key = "--api-key-file=" + folder + "/key";
  const std::string worker_key = "--worker-api-key-file=" + folder + "/key";
  const std::string empty = "--api-key-file=" + folder + "/empty";
  GatewaySettings settings;
  const auto run = Parse(
      {"--http=127.0.0.1:1,unix:/x/y", "--worker=unix:/w", key.c_str(), worker_key.c_str(),
       "--cors-origin=https://a,https://b", "--max-body-bytes=1MiB", "--keepalive-interval=2s",
       "--drain-timeout=7s", "--max-generations=5", "--max-connections=9", "--page=off",
       "--served-model-name=a,b", "--served-model-name=*", "--strict-parameters"},
      &settings);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_THAT(settings.server.addresses, ElementsAre("127.0.0.1:1", "unix:/x/y"));
  EXPECT_TRUE(settings.gateway.keys->ring()->Find("Bearer secret").ok());
  EXPECT_THAT(settings.gateway.model_names, ElementsAre("a", "b", "*"));
  EXPECT_TRUE(settings.gateway.strict_parameters);
  EXPECT_EQ(settings.worker.api_key, "secret");
  EXPECT_THAT(settings.gateway.cors_origins, ElementsAre("https://a", "https://b"));
  EXPECT_EQ(settings.server.limits.request.body_bytes_max, size_t{1} << 20);
  EXPECT_EQ(settings.gateway.keepalive, absl::Seconds(2));
  EXPECT_EQ(settings.gateway.generations_max, 5);
  EXPECT_EQ(settings.server.connections_max, 9);
  EXPECT_FALSE(settings.gateway.page);
  EXPECT_FALSE(settings.gateway.keep_billing_header);
  EXPECT_TRUE(Parse({"--billing-header=keep"}, &settings).ok());
  EXPECT_TRUE(settings.gateway.keep_billing_header);
  EXPECT_FALSE(Parse({"--billing-header=perhaps"}, &settings).ok());
  EXPECT_FALSE(settings.gateway.tool_form.has_value());
  EXPECT_TRUE(Parse({"--tool-call-parser=qwen3_coder"}, &settings).ok());
  EXPECT_EQ(settings.gateway.tool_form, ToolForm::kQwenCoder);
  EXPECT_TRUE(Parse({"--tool-call-parser=none"}, &settings).ok());
  EXPECT_EQ(settings.gateway.tool_form, ToolForm::kText);
  EXPECT_FALSE(Parse({"--tool-call-parser=xml"}, &settings).ok());
  EXPECT_FALSE(settings.checks_only);
  EXPECT_TRUE(Parse({"--check-settings"}, &settings).ok());
  EXPECT_TRUE(settings.checks_only);
  EXPECT_FALSE(Parse({"--page=perhaps"}, &settings).ok());
  EXPECT_FALSE(Parse({empty.c_str()}, &settings).ok());
  EXPECT_FALSE(Parse({"--api-key-file=/nothing"}, &settings).ok());
  EXPECT_FALSE(Parse({"--api-key-file=/dev/zero"}, &settings).ok());
  EXPECT_FALSE(Parse({"--keepalive-interval=0s"}, &settings).ok());
  EXPECT_FALSE(Parse({"--cors-origin=a\r\nX: y"}, &settings).ok());
  std::filesystem::remove_all(folder);
}

TEST(GatewaySettings, WarnsOfWhatStrangersCanDo) {
  GatewaySettings settings;
  ASSERT_TRUE(Parse({"--http=0.0.0.0:0"}, &settings).ok());
  ASSERT_THAT(settings.warnings, SizeIs(2));
  EXPECT_THAT(settings.warnings[0], HasSubstr("without TLS"));
  EXPECT_THAT(settings.warnings[1], HasSubstr("--api-key-file"));
}

}  // namespace
}  // namespace retroinfer::gateway
