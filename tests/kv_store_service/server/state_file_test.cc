#include "kv_store_service/server/state_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/kv_store_service/temporary_folder.h"

namespace retroinfer::kvstore {
namespace {

class StateFileTest : public testing::Test {
 protected:
  StateFileTest() : path_(folder_.path() + "/state"), file_(path_) {}

  TemporaryFolder folder_;
  std::string path_;
  StateFile file_;
};

TEST_F(StateFileTest, KeepsWhatWasWritten) {
  EXPECT_EQ(file_.Read(), std::nullopt);
  const std::string fingerprint("\0\xff binary", 9);
  ASSERT_TRUE(file_.Write({1, 2, {32, 8, 64, DType::kF32}, "old"}).ok());
  ASSERT_TRUE(file_.Write({1234, 1 << 30, {32, 8, 128, DType::kBf16}, fingerprint}).ok());
  const auto note = file_.Read();
  ASSERT_TRUE(note.has_value());
  EXPECT_EQ(note->worker_pid, 1234);
  EXPECT_EQ(note->arena_bytes, 1u << 30);
  EXPECT_EQ(note->geometry, (KvGeometry{32, 8, 128, DType::kBf16}));
  EXPECT_EQ(note->model_fingerprint, fingerprint);
  file_.Remove();
  file_.Remove();
  EXPECT_EQ(file_.Read(), std::nullopt);
}

TEST_F(StateFileTest, IgnoresWhatItDoesNotUnderstand) {
  ASSERT_TRUE(file_.Write({1, 2, {32, 8, 64, DType::kF32}, "f"}).ok());
  std::string good;
  {
    std::ifstream in(path_);
    good.assign(std::istreambuf_iterator<char>(in), {});
  }
  for (const std::string& text :
       {std::string(), std::string("garbage"), std::string(100'000, 'x'), good.substr(5),
        good.substr(0, good.size() / 2), "retroinfer-store-state 2\n" + good}) {
    std::ofstream(path_, std::ios::trunc) << text;
    EXPECT_EQ(file_.Read(), std::nullopt) << text.substr(0, 40);
  }
}

TEST_F(StateFileTest, SaysWhenItCannotWrite) {
  EXPECT_FALSE(StateFile(folder_.path() + "/no/such/folder").Write({}).ok());
}

TEST(ProcessIsAliveTest, KnowsTheLivingAndTheDead) {
  EXPECT_TRUE(ProcessIsAlive(::getpid()));
  EXPECT_TRUE(ProcessIsAlive(0));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(ProcessIsAlive(child));
}

}  // namespace
}  // namespace retroinfer::kvstore
