// A file that only its owner can read, and that appears under its name when it is complete.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::client {

// Threads: one.
class PrivateFile {
 public:
  // Makes a file of mode 0600 beside `path`.
  //
  // Returns: ALREADY_EXISTS if `path` is there and `replace` is not set; errors of the system.
  static absl::StatusOr<PrivateFile> Create(const std::string& path, bool replace);
  ~PrivateFile();  // removes it unless Commit() was called
  PrivateFile(PrivateFile&& other) noexcept;
  PrivateFile& operator=(PrivateFile&&) = delete;

  absl::Status Append(std::string_view bytes);
  // Makes it durable and gives it its name.
  absl::Status Commit();

 private:
  PrivateFile(std::string path, std::string temporary, common::UniqueFd fd)
      : path_(std::move(path)), temporary_(std::move(temporary)), fd_(std::move(fd)) {}

  std::string path_;
  std::string temporary_;  // empty: nothing to remove
  common::UniqueFd fd_;
};

}  // namespace retroinfer::client
