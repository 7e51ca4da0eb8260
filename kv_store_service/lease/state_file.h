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
  pid_t worker_pid = 0;  // as the store saw it; 0: in a pid namespace that it does not see
  uint64_t arena_bytes = 0;
  KvGeometry geometry;
  std::string model_fingerprint;  // bytes
};

// Returns what the bytes of a state file say; nothing if they cannot be understood.
std::optional<StateNote> ParseStateNote(const std::string& text);

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

  // Whether the worker of `note` lives: by the mark that workers hold in the file's folder
  // (common/shm/worker_mark.h), else by its process id, of which 0 counts as alive.
  bool HolderLives(const StateNote& note) const;

 private:
  std::string path_;
};

}  // namespace retroinfer::kvstore
