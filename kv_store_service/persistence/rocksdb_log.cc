#include "kv_store_service/persistence/rocksdb_log.h"

#include <spdlog/spdlog.h>

#include <cstdarg>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock/steady_now.h"
#include "common/log/log_rate_limiter.h"

namespace retroinfer::kvstore {
namespace {

class ServiceLog final : public rocksdb::Logger {
 public:
  ServiceLog() : Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}

  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    Logv(rocksdb::InfoLogLevel::INFO_LEVEL, format, arguments);
  }
  void Logv(rocksdb::InfoLogLevel level, const char* format, va_list arguments) override {
    // Headers are above errors in RocksDB's order.
    if (level < rocksdb::InfoLogLevel::WARN_LEVEL || level > rocksdb::InfoLogLevel::FATAL_LEVEL) {
      return;
    }
    std::optional<uint64_t> suppressed;
    {
      absl::MutexLock lock(&mutex_);
      suppressed = limiter_.Admit(common::SteadyNow());
    }
    if (!suppressed.has_value()) return;
    char text[512];
    (void)std::vsnprintf(text, sizeof(text), format, arguments);
    spdlog::warn("durable segments: RocksDB: {} ({} messages left out)",
                 std::string(absl::StripTrailingAsciiWhitespace(text)), *suppressed);
  }

 private:
  absl::Mutex mutex_;
  common::LogRateLimiter limiter_ ABSL_GUARDED_BY(mutex_){absl::Seconds(5)};
};

}  // namespace

std::shared_ptr<rocksdb::Logger> MakeRocksDbLog() { return std::make_shared<ServiceLog>(); }

}  // namespace retroinfer::kvstore
