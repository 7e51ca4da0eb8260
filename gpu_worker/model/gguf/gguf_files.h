// All files of a model in GGUF: one, or what it was split into (NAME-00001-of-00003.gguf).
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/model/gguf/gguf_file.h"

namespace retroinfer {

// Threads: immutable after Open.
// Owns:    the files that its tensors point into.
class GgufFiles {
 public:
  static constexpr int64_t kMaxFiles = 4096;

  // Opens `path` and, if it is a part of a split model, all others beside it.
  //
  // Returns: as GgufFile::Open; NOT_FOUND, naming them, if parts are missing; INVALID_ARGUMENT if
  //          parts do not belong together, or a tensor is in two of them.
  static absl::StatusOr<GgufFiles> Open(const std::string& path);

  // The first part's, which says all of the model.
  const GgufMetadata& metadata() const { return files_.front().metadata(); }
  const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }
  // Of the only file, or of the first part.
  const std::string& path() const { return path_; }

 private:
  absl::Status Add(const std::string& path, GgufFile file);

  std::string path_;
  std::vector<GgufFile> files_;
  std::map<std::string, GgufTensor> tensors_;
};

// A file's name without ".gguf" and, of a part of a split model, without what says which part it
// is.
std::string GgufModelName(const std::string& path);

// The models in GGUF in a folder, sorted: of a split one the first part that is there. At most 4096
// entries of it are looked at.
std::vector<std::string> GgufModelsIn(const std::string& folder);

}  // namespace retroinfer
