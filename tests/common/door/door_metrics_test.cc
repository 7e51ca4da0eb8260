#include "common/door/door_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "absl/time/clock.h"
#include "tests/support/certificates.h"
#include "tests/support/http2_client.h"

namespace retroinfer::common {
namespace {

using ::testing::HasSubstr;

TEST(DoorMetrics, ShowConnectionsAndTheCertificatesEnd) {
  std::string pattern = (std::filesystem::temp_directory_path() / "retroinfer-XXXXXX").string();
  const std::string folder = ::mkdtemp(pattern.data());
  DoorOptions options;
  options.addresses = {"127.0.0.1:0"};
  options.tls = {folder + "/c.pem", folder + "/k.pem", ""};
  WriteCertificate(options.tls.certificate, options.tls.key);
  auto door = Door::Listen(options);
  ASSERT_TRUE(door.ok()) << door.status();
  Metrics metrics("a service", "1", "r", "cpu");
  {
    DoorMetrics of_door(**door, metrics, "a");
    (*door)->Open([](int fd) { ::close(fd); });
    EXPECT_THAT(metrics.Render(), HasSubstr("retroinfer_connections{service=\"a\"} 0"));
    const test_support::Http2Client client((*door)->addresses()[0], true);
    ASSERT_TRUE(client.connected());
    std::string text;
    for (int i = 0; i < 1000; ++i) {
      text = metrics.Render();
      if (text.find("retroinfer_connections{service=\"a\"} 1") != std::string::npos) break;
      absl::SleepFor(absl::Milliseconds(10));
    }
    EXPECT_THAT(text, HasSubstr("retroinfer_connections{service=\"a\"} 1"));
    EXPECT_THAT(text,
                HasSubstr("retroinfer_connections_total{result=\"accepted\",service=\"a\"} 1"));
    const std::string expiry = "retroinfer_certificate_expiry_timestamp_seconds{service=\"a\"} ";
    ASSERT_THAT(text, HasSubstr(expiry));
    const double seconds = std::stod(text.substr(text.find(expiry) + expiry.size()));
    EXPECT_NEAR(seconds, static_cast<double>(absl::ToUnixSeconds(absl::Now()) + 3600), 300);
  }
  door->reset();
  metrics.Render();  // does not look at the door any more
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace retroinfer::common
