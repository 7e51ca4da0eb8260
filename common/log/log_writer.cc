#include "common/log/log_writer.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace retroinfer::common {
namespace {

constexpr int kPollMilliseconds = 100;

enum class Written { kAll, kNothing, kPart };

// Waits as long as it takes; ends early only where the descriptor is of no use.
Written WriteAll(int fd, std::string_view text) {
  const size_t size = text.size();
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {  // somebody has made the shared end non-blocking
      pollfd polled{fd, POLLOUT, 0};
      ::poll(&polled, 1, kPollMilliseconds);
    } else if (errno != EINTR) {
      return text.size() == size ? Written::kNothing : Written::kPart;
    }
  }
  return Written::kAll;
}

}  // namespace

// Shared with the thread, which may outlive the object.
struct LogWriter::State {
  struct Entry {
    std::string line;
    std::optional<UniqueFd> replacement;  // the line is empty then
  };

  explicit State(Options given, UniqueFd first) : options(std::move(given)), fd(std::move(first)) {}
  void Run() ABSL_LOCKS_EXCLUDED(mutex);
  void Put(const std::string& line);
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex) { return stopping || !entries.empty(); }
  bool IsIdle() const ABSL_SHARED_LOCKS_REQUIRED(mutex) { return !writing && entries.empty(); }

  const Options options;
  // Of the thread alone.
  UniqueFd fd;
  bool in_line = false;  // the last line was cut
  uint64_t told = 0;     // lines that the log said are missing

  absl::Mutex mutex;
  std::deque<Entry> entries ABSL_GUARDED_BY(mutex);
  size_t queued_bytes ABSL_GUARDED_BY(mutex) = 0;
  uint64_t dropped ABSL_GUARDED_BY(mutex) = 0;
  bool writing ABSL_GUARDED_BY(mutex) = false;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
};

void LogWriter::State::Put(const std::string& line) {
  uint64_t missing = 0;
  {
    absl::MutexLock lock(&mutex);
    missing = dropped - told;
  }
  std::string text = in_line ? "\n" : "";
  if (missing > 0 && options.describe_dropped) text += options.describe_dropped(missing);
  const Written written = WriteAll(fd.get(), text + line);
  if (written == Written::kAll) {
    in_line = false;
    told += missing;
    return;
  }
  in_line = in_line || written == Written::kPart;
  absl::MutexLock lock(&mutex);
  ++dropped;
}

void LogWriter::State::Run() {
  while (true) {
    Entry entry;
    {
      absl::MutexLock lock(&mutex);
      writing = false;
      mutex.Await(absl::Condition(this, &State::HasWork));
      if (entries.empty()) return;
      entry = std::move(entries.front());
      entries.pop_front();
      queued_bytes -= entry.line.size();
      writing = true;
    }
    if (entry.replacement.has_value()) {
      fd = *std::move(entry.replacement);
      in_line = false;
    } else {
      Put(entry.line);
    }
  }
}

LogWriter::LogWriter(UniqueFd fd, Options options)
    : farewell_(options.farewell),
      state_(std::make_shared<State>(std::move(options), std::move(fd))) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // which the thread inherits
  std::thread([state = state_] { state->Run(); }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

LogWriter::~LogWriter() {
  Flush(farewell_);
  absl::MutexLock lock(&state_->mutex);
  state_->stopping = true;
}

void LogWriter::Write(std::string line) {
  absl::MutexLock lock(&state_->mutex);
  if (state_->queued_bytes + line.size() > state_->options.queue_bytes) {
    ++state_->dropped;
    return;
  }
  state_->queued_bytes += line.size();
  state_->entries.push_back({std::move(line), std::nullopt});
}

void LogWriter::Replace(UniqueFd fd) {
  absl::MutexLock lock(&state_->mutex);
  state_->entries.push_back({"", std::move(fd)});
}

bool LogWriter::Flush(absl::Duration timeout) {
  absl::MutexLock lock(&state_->mutex);
  return state_->mutex.AwaitWithTimeout(absl::Condition(state_.get(), &State::IsIdle), timeout);
}

uint64_t LogWriter::num_dropped() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->dropped;
}

}  // namespace retroinfer::common
