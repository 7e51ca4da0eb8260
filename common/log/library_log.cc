// Which library logs how depends on its version:
// * gRPC before 1.66 has a function to be replaced, protobuf before 22 another one;
// * later ones log through absl, whose log can be given a sink since 2023.
#include "common/log/library_log.h"

#include <google/protobuf/message.h>
#include <grpcpp/version_info.h>
#include <spdlog/spdlog.h>

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock/steady_now.h"
#include "common/log/log_rate_limiter.h"

#if GOOGLE_PROTOBUF_VERSION < 4022000
#include <google/protobuf/stubs/logging.h>
#endif
#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 66
#include <grpc/support/log.h>
#define RETROINFER_GRPC_HAS_LOG_FUNCTION 1
#endif
#if __has_include("absl/log/log_sink_registry.h")
#include "absl/log/globals.h"
#include "absl/log/initialize.h"
#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "absl/log/log_sink_registry.h"
#define RETROINFER_ABSL_HAS_LOG_SINKS 1
#endif

namespace retroinfer::common {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(1);

// Logs what one library says, a line an interval.
class LimitedLog {
 public:
  explicit LimitedLog(const char* library) : library_(library) {}

  void Log(bool is_error, const std::string& message) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto suppressed = limiter_.Admit(SteadyNow());
    if (!suppressed.has_value()) return;
    spdlog::log(is_error ? spdlog::level::warn : spdlog::level::debug,
                "{}: {} ({} messages before it left out)", library_, message, *suppressed);
  }

 private:
  const char* const library_;
  absl::Mutex mutex_;
  LogRateLimiter limiter_ ABSL_GUARDED_BY(mutex_){kInterval};
};

#ifdef RETROINFER_GRPC_HAS_LOG_FUNCTION
void LogForGrpc(gpr_log_func_args* arguments) {
  static auto* const log = new LimitedLog("gRPC");
  log->Log(arguments->severity == GPR_LOG_SEVERITY_ERROR, arguments->message);
}
#endif

#ifdef RETROINFER_ABSL_HAS_LOG_SINKS
class SpdlogSink final : public absl::LogSink {
 public:
  void Send(const absl::LogEntry& entry) override {
    log_.Log(entry.log_severity() >= absl::LogSeverity::kError, std::string(entry.text_message()));
  }

 private:
  LimitedLog log_{"library"};
};

// Until absl's log is initialised it writes all messages to stderr, whatever the threshold; to
// initialise it twice ends the process. Fatal messages do that, too: they are still seen on stderr,
// where spdlog's would be lost.
void LeaveFatalMessagesAlone() {
  static const bool initialized = [] {
    absl::InitializeLog();
    return true;
  }();
  static_cast<void>(initialized);
  absl::SetStderrThreshold(absl::LogSeverityAtLeast::kFatal);
}
#endif

}  // namespace

void TakeLogsOfLibraries() {
#ifdef RETROINFER_GRPC_HAS_LOG_FUNCTION
  gpr_set_log_function(LogForGrpc);
#endif
#if GOOGLE_PROTOBUF_VERSION < 4022000
  google::protobuf::SetLogHandler(nullptr);
#endif
#ifdef RETROINFER_ABSL_HAS_LOG_SINKS
  static SpdlogSink* sink = nullptr;
  if (sink != nullptr) return;
  sink = new SpdlogSink();
  absl::AddLogSink(sink);
  LeaveFatalMessagesAlone();
#endif
}

void SilenceLibraries() {
#ifdef RETROINFER_GRPC_HAS_LOG_FUNCTION
  gpr_set_log_function([](gpr_log_func_args*) {});
#endif
#if GOOGLE_PROTOBUF_VERSION < 4022000
  google::protobuf::SetLogHandler(nullptr);
#endif
#ifdef RETROINFER_ABSL_HAS_LOG_SINKS
  LeaveFatalMessagesAlone();
#endif
}

}  // namespace retroinfer::common
