#include "gpu_worker/measuring/retrieval_trace/trace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/files/regular_file.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"
#include "spdlog/spdlog.h"

namespace retroinfer {
namespace {

// Whether the file is empty or begins with `magic`.
absl::StatusOr<bool> IsTrace(int file, const std::string& path, const std::string& magic) {
  std::string begin(magic.size(), '\0');
  const ssize_t got = ::pread(file, begin.data(), begin.size(), 0);
  if (got < 0) return common::ErrnoStatus(errno, absl::StrCat("reading ", path));
  return got == 0 || begin == magic;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Open(const std::string& path,
                                                           const std::string& magic,
                                                           uint64_t limit_bytes) {
  ASSIGN_OR_RETURN(common::UniqueFd file, common::OpenRegularFile(path, O_RDWR | O_CREAT));
  ASSIGN_OR_RETURN(const bool is_trace, IsTrace(file.get(), path, magic));
  if (!is_trace) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is there and no trace; move it away or name another file"));
  }
  if (::ftruncate(file.get(), 0) != 0) {
    return common::ErrnoStatus(errno, absl::StrCat("emptying ", path));
  }
  return absl::WrapUnique(new TraceFile(path, std::move(file), limit_bytes));
}

TraceFile::TraceFile(std::string path, common::UniqueFd file, uint64_t limit_bytes)
    : path_(std::move(path)), file_(std::move(file)), limit_bytes_(limit_bytes) {
  thread_ = std::thread([this] { Write(); });
}

TraceFile::~TraceFile() {
  {
    const absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  thread_.join();
}

bool TraceFile::is_open() const {
  const absl::MutexLock lock(&mutex_);
  return !has_ended_;
}

bool TraceFile::has_room() const {
  const absl::MutexLock lock(&mutex_);
  return waiting_.size() < kMaxWaiting;
}

uint64_t TraceFile::size_bytes() const {
  const absl::MutexLock lock(&mutex_);
  return num_bytes_;
}

void TraceFile::Append(std::string bytes) {
  const absl::MutexLock lock(&mutex_);
  if (has_ended_) return;
  num_bytes_ += bytes.size();
  waiting_ += bytes;
}

void TraceFile::End(std::string bytes, const std::string& why) {
  const absl::MutexLock lock(&mutex_);
  if (has_ended_) return;
  num_bytes_ += bytes.size();
  waiting_ += bytes;
  has_ended_ = true;
  spdlog::info("retrieval trace {}: {} bytes, {}", path_, num_bytes_, why);
}

bool TraceFile::WriteAll(const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written = ::write(file_.get(), bytes.data() + done, bytes.size() - done);
    if (written > 0) {
      done += static_cast<size_t>(written);
    } else if (written == 0 || errno != EINTR) {
      const absl::Status status = common::ErrnoStatus(written == 0 ? ENOSPC : errno, "writing");
      spdlog::error("retrieval trace {}: nothing more is recorded: {}", path_,
                    std::string(status.message()));
      return false;
    }
  }
  return true;
}

void TraceFile::Write() {
  while (true) {
    std::string bytes;
    {
      const absl::MutexLock lock(&mutex_);
      const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return !waiting_.empty() || is_stopping_;
      };
      mutex_.Await(absl::Condition(&has_work));
      if (waiting_.empty()) return;
      bytes.swap(waiting_);
    }
    if (WriteAll(bytes)) continue;
    const absl::MutexLock lock(&mutex_);
    has_ended_ = true;
    waiting_.clear();
    const auto is_stopping = [this]()
                                 ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_stopping_; };
    mutex_.Await(absl::Condition(&is_stopping));
    return;
  }
}

}  // namespace retroinfer
