#include "kv_store_service/lease/state_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "common/shm/worker_mark.h"
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
  ASSERT_TRUE(file_.Write({1, 2, {32, 8, 64, kF32Kv}, "old"}).ok());
  ASSERT_TRUE(file_.Write({1234, 1 << 30, {32, 8, 128, kBf16Kv}, fingerprint}).ok());
  const auto note = file_.Read();
  ASSERT_TRUE(note.has_value());
  EXPECT_EQ(note->worker_pid, 1234);
  EXPECT_EQ(note->arena_bytes, 1u << 30);
  EXPECT_EQ(note->geometry, (KvGeometry{32, 8, 128, kBf16Kv}));
  EXPECT_EQ(note->model_fingerprint, fingerprint);
  file_.Remove();
  file_.Remove();
  EXPECT_EQ(file_.Read(), std::nullopt);
}

TEST_F(StateFileTest, IgnoresWhatItDoesNotUnderstand) {
  ASSERT_TRUE(file_.Write({1, 2, {32, 8, 64, kF32Kv}, "f"}).ok());
  std::string good;
  {
    std::ifstream in(path_);
    good.assign(std::istreambuf_iterator<char>(in), {});
  }
  // As written before formats had a description of their own.
  ASSERT_NE(good.find("\ndtype 1\n"), std::string::npos) << good;
  std::string unknown = good;
  unknown.replace(unknown.find("dtype 1"), 7, "dtype 99");
  for (const std::string& text :
       {unknown, std::string(), std::string("garbage"), std::string(100'000, 'x'), good.substr(5),
        good.substr(0, good.size() / 2), "retroinfer-store-state 2\n" + good,
        good.substr(0, good.size() - 2), good.substr(0, good.size() - 2) + "x\n"}) {
    std::ofstream(path_, std::ios::trunc) << text;
    EXPECT_EQ(file_.Read(), std::nullopt) << text.substr(0, 40);
  }
}

TEST_F(StateFileTest, KeepsTheFormat) {
  for (const KvFormat& format : kKvFormats) {
    ASSERT_TRUE(file_.Write({1, 2, {32, 8, 64, format}, "f"}).ok());
    ASSERT_TRUE(file_.Read().has_value());
    EXPECT_EQ(file_.Read()->geometry.format, format);
  }
}

TEST_F(StateFileTest, KeepsWindowLayers) {
  const KvGeometry geometry{32, 8, 64, kF32Kv, 12, 128};
  ASSERT_TRUE(file_.Write({1, 2, geometry, "f"}).ok());
  const auto note = file_.Read();
  ASSERT_TRUE(note.has_value());
  EXPECT_EQ(note->geometry, geometry);
  std::string text;
  {
    std::ifstream in(path_);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  text.replace(text.find("window_tokens 128"), 17, "window_tokens 0");
  std::ofstream(path_, std::ios::trunc) << text;
  EXPECT_EQ(file_.Read(), std::nullopt);
}

TEST_F(StateFileTest, SaysWhenItCannotWrite) {
  EXPECT_FALSE(StateFile(folder_.path() + "/no/such/folder").Write({}).ok());
}

TEST_F(StateFileTest, WithoutAMarkTheProcessIdTellsTheLivingFromTheDead) {
  EXPECT_TRUE(file_.HolderLives({.worker_pid = ::getpid()}));
  EXPECT_TRUE(file_.HolderLives({.worker_pid = 0}));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(file_.HolderLives({.worker_pid = child}));
}

TEST_F(StateFileTest, TheMarkTellsWhateverTheProcessIdIs) {
  ASSERT_TRUE(common::WorkerMark::Make(folder_.path()).ok());
  for (const pid_t pid : {::getpid(), 0}) EXPECT_FALSE(file_.HolderLives({.worker_pid = pid}));
  const auto mark = common::WorkerMark::Hold(folder_.path());
  ASSERT_TRUE(mark.ok()) << mark.status();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  for (const pid_t pid : {::getpid(), 0, child}) {
    EXPECT_TRUE(file_.HolderLives({.worker_pid = pid}));
  }
}

TEST_F(StateFileTest, DoesNotWaitForAFifo) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(file_.Read(), std::nullopt);
  EXPECT_FALSE(file_.Write({}).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
