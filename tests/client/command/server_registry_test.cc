#include "client/command/server_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "common/shm/folder_lock.h"
#include "tests/support/temp_folder.h"

namespace retroinfer::client {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ServerRegistryTest : public ::testing::Test {
 protected:
  // A socket folder; with `role`, one that this process serves.
  std::string SocketDir(const std::string& name, const char* role = nullptr) {
    const std::string path = folder_.File(name);
    fs::create_directory(path);
    if (role != nullptr) locks_.push_back(*common::FolderLock::Take(path, role, "a program"));
    return path;
  }
  size_t NumEntries() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_.File("registry")), fs::directory_iterator()));
  }

  const test_support::TempFolder folder_;
  const ServerRegistry registry_{folder_.File("registry")};
  std::vector<common::FolderLock> locks_;
};

TEST_F(ServerRegistryTest, FindsWhatWasNotedWhileItRuns) {
  const std::string running = SocketDir("running", "serve");
  EXPECT_THAT(registry_.Running({}), IsEmpty());
  ASSERT_TRUE(registry_.Add(running).ok());
  EXPECT_THAT(registry_.Running({}), ElementsAre(running));
  locks_.clear();
  EXPECT_THAT(registry_.Running({}), IsEmpty());
  registry_.Remove();
  EXPECT_EQ(NumEntries(), 0u);
}

TEST_F(ServerRegistryTest, TheUsualFoldersCountWhereAServiceRuns) {
  const std::string store = SocketDir("store", "kv_store");
  const std::string worker = SocketDir("worker", "gpu_worker");
  const std::string idle = SocketDir("idle");
  ASSERT_TRUE(registry_.Add(store).ok());
  EXPECT_THAT(registry_.Running({store, worker, idle, folder_.File("none")}),
              ElementsAre(store, worker));
}

TEST_F(ServerRegistryTest, ThoseThatEndedAreForgottenAtTheNextStart) {
  ASSERT_TRUE(registry_.Add(SocketDir("running", "serve")).ok());
  fs::create_symlink(folder_.File("gone"), folder_.File("registry") + "/1");
  fs::create_symlink(SocketDir("idle"), folder_.File("registry") + "/2");
  std::ofstream(folder_.File("registry") + "/a file") << "is nobody's business";
  ASSERT_TRUE(registry_.Add(SocketDir("another", "serve")).ok());
  EXPECT_EQ(NumEntries(), 2u);  // that of this process, and the file
}

TEST_F(ServerRegistryTest, AFolderThatOthersMayWriteIsNotUsed) {
  fs::create_directory(folder_.File("registry"));
  ASSERT_EQ(::chmod(folder_.File("registry").c_str(), 0777), 0);
  const std::string running = SocketDir("running", "serve");
  EXPECT_EQ(registry_.Add(running).code(), absl::StatusCode::kPermissionDenied);
  fs::create_symlink(running, folder_.File("registry") + "/1");
  EXPECT_THAT(registry_.Running({}), IsEmpty());
}

TEST_F(ServerRegistryTest, TheFolderIsThatOfTheSession) {
  ::setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(ServerRegistry::DefaultFolder(), "/run/user/7/retroinfer-servers");
  ::unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(ServerRegistry::DefaultFolder(),
            "/tmp/retroinfer-" + std::to_string(::geteuid()) + "-servers");
}

}  // namespace
}  // namespace retroinfer::client
