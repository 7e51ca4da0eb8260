// A folder of mode 0700 with a short path, for unix sockets; removed at the end.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace retroinfer::kvstore {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    char path[] = "/tmp/rt_test_XXXXXX";
    path_ = ::mkdtemp(path) != nullptr ? path : "";
  }
  ~TemporaryFolder() {
    if (!path_.empty()) std::filesystem::remove_all(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace retroinfer::kvstore
