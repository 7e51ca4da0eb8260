#include "kv_store_service/persistence/rocksdb_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <sstream>
#include <string>

namespace retroinfer::kvstore {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(RocksDbLogTest, PassesWarningsOnAndNotTooMany) {
  std::ostringstream text;
  const auto former = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text)));
  const auto log = MakeRocksDbLog();
  rocksdb::Info(log.get(), "an info %d", 1);
  rocksdb::Header(log.get(), "a header %d", 2);
  rocksdb::Warn(log.get(), "a warning %d", 3);
  rocksdb::Error(log.get(), "an error %d", 4);
  spdlog::set_default_logger(former);
  EXPECT_THAT(text.str(), HasSubstr("RocksDB: a warning 3 (0 messages left out)"));
  EXPECT_THAT(text.str(), Not(HasSubstr("info")));
  EXPECT_THAT(text.str(), Not(HasSubstr("header")));
  EXPECT_THAT(text.str(), Not(HasSubstr("an error")));
}

TEST(RocksDbLogTest, CutsWhatIsLong) {
  const auto log = MakeRocksDbLog();
  rocksdb::Warn(log.get(), "%s", std::string(100'000, 'x').c_str());
}

}  // namespace
}  // namespace retroinfer::kvstore
