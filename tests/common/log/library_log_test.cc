#include "common/log/library_log.h"

#include <gmock/gmock.h>
#include <grpcpp/version_info.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>

#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 66
#include <grpc/support/log.h>
#endif
#if __has_include("absl/log/absl_log.h")
#include "absl/log/absl_log.h"
#endif

namespace retroinfer::common {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LibraryLogTest : public ::testing::Test {
 protected:
  LibraryLogTest() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_, /*force_flush=*/true)));
    spdlog::set_level(spdlog::level::info);
    TakeLogsOfLibraries();
    TakeLogsOfLibraries();  // no line twice
  }
  ~LibraryLogTest() override { spdlog::set_default_logger(before_); }

  // Expects that of two lines at once, of which the first is an error, that one is logged.
  void ExpectTheFirst() {
    EXPECT_THAT(text_.str(), HasSubstr("bad: 7 (0 messages before it left out)"));
    EXPECT_THAT(text_.str(), Not(HasSubstr("bad: 8")));
    EXPECT_EQ(text_.str().find("bad: 7"), text_.str().rfind("bad: 7"));
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  }

  const std::shared_ptr<spdlog::logger> before_;
  std::ostringstream text_;
};

#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 66
TEST_F(LibraryLogTest, GrpcLogsThroughSpdlogAndNotWithoutBound) {
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);  // as when gRPC has begun
  ::testing::internal::CaptureStderr();
  gpr_log(GPR_ERROR, "bad: %d", 7);
  gpr_log(GPR_ERROR, "bad: %d", 8);
  ExpectTheFirst();
}
#endif

TEST_F(LibraryLogTest, CommandsCanHaveThemSilent) {
  SilenceLibraries();
  ::testing::internal::CaptureStderr();
#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 66
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  gpr_log(GPR_ERROR, "bad: %d", 7);
#endif
  EXPECT_EQ(text_.str(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(LibraryLogTest, AbslLogsThroughSpdlogAndNotWithoutBound) {
#ifdef ABSL_LOG
  ::testing::internal::CaptureStderr();
  ABSL_LOG(ERROR) << "bad: " << 7;
  ABSL_LOG(ERROR) << "bad: " << 8;
  ExpectTheFirst();
#else
  GTEST_SKIP() << "this version of absl has no log of its own";
#endif
}

}  // namespace
}  // namespace retroinfer::common
