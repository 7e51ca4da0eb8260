// A file that a trace is written to, by a thread of its own: who appends never waits for the disk.
// It has a limit. A disk that is full or broken ends the recording, with a line in the log.
//
// Threads: any, one at a time.
// Owns:    the file and its thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/shm/unique_fd.h"

namespace retroinfer {

class TraceFile {
 public:
  // Bytes that wait for the disk, at most.
  static constexpr size_t kMaxWaiting = size_t{8} << 20;

  // Makes `path`, or takes the place of an earlier trace there, which begins with `magic`, or of an
  // empty file. `limit_bytes`: of the whole file.
  //
  // Returns: FAILED_PRECONDITION if something else is there, which stays as it is.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(const std::string& path,
                                                         const std::string& magic,
                                                         uint64_t limit_bytes);
  // Writes what waits, as far as the disk takes it.
  ~TraceFile();

  // Whether anything more can be recorded: the limit was not reached, and the disk takes it.
  bool is_open() const;
  // Whether fewer than kMaxWaiting bytes wait for the disk.
  bool has_room() const;
  // Writes `bytes` behind the others. REQUIRES: is_open().
  void Append(std::string bytes);
  // Writes `bytes`, and nothing behind them, with `why` in the log.
  void End(std::string bytes, const std::string& why);
  uint64_t limit_bytes() const { return limit_bytes_; }
  // Bytes of the file with all that waits.
  uint64_t size_bytes() const;

 private:
  TraceFile(std::string path, common::UniqueFd file, uint64_t limit_bytes);
  void Write();
  bool WriteAll(const std::string& bytes);

  const std::string path_;
  const common::UniqueFd file_;
  const uint64_t limit_bytes_;

  mutable absl::Mutex mutex_;
  std::string waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t num_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;  // nothing comes any more, or the disk is broken
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace retroinfer
