// A note to the next store process in the same folder: a worker still holds the memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/kv/kv_geometry.h"

namespace retroinfer::kvstore {

// The worker that holds arena and data plane.
struct StateNote {
  pid_t worker_pid = 0;  // 0: not visible from the store
  uint64_t arena_bytes = 0;
  KvGeometry geometry;
  std::string model_fingerprint;  // bytes
};

// One small text file, written while a worker is attached.
//
// Threads: one at a time.
class StateFile {
 public:
  explicit StateFile(std::string path) : path_(std::move(path)) {}

  // Replaces the note atomically.
  absl::Status Write(const StateNote& note);
  // Removes the note, if there is one.
  void Remove();

  // Returns the note; nothing if there is none, or one that cannot be understood (logged).
  std::optional<StateNote> Read() const;

 private:
  std::string path_;
};

// Whether a process with this id exists. Unknown (pid 0) counts as alive.
bool ProcessIsAlive(pid_t pid);

}  // namespace retroinfer::kvstore
