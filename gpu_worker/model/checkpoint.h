// All weights of a model: of a folder model.safetensors, or the files that
// model.safetensors.index.json names; or those that files of another format hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/model/host_tensor.h"
#include "gpu_worker/model/tensor_file.h"

namespace retroinfer {

// Threads: immutable after Open.
// Owns:    the mapped and open files that its tensors point into.
class Checkpoint {
 public:
  static constexpr size_t kMaxFiles = 4096;

  // Opens and checks every file of the checkpoint. An index must name each tensor of its files, and
  // only files that lie in `folder` itself.
  //
  // Returns: NOT_FOUND if there are no weights, or a file that the index names is missing;
  //          INVALID_ARGUMENT and UNIMPLEMENTED as SafetensorsFile::Open.
  static absl::StatusOr<Checkpoint> Open(const std::string& folder);

  // The tensors of `file`. In messages `place` takes a folder's place, and `described_by` that of
  // its config.json.
  static Checkpoint Of(const std::string& place, const std::string& described_by,
                       std::unique_ptr<TensorFile> file);

  // The same tensors; this must outlive what points into its files.
  Checkpoint View() const;

  const std::string& folder() const { return folder_; }
  // What says which tensors there must be: "config.json".
  const std::string& described_by() const { return described_by_; }
  const std::map<std::string, HostTensor>& tensors() const { return tensors_; }
  // Of the tensors as they are loaded: coded ones (TensorCoding) take less in their files.
  size_t total_bytes() const { return total_bytes_; }
  // Whether tensors are decoded when they are read: threads do that side by side.
  bool is_coded() const { return is_coded_; }

  // Takes `tensor` for the one of that name.
  //
  // REQUIRES: there is one, and `tensor` points into its file.
  void Replace(const std::string& name, HostTensor tensor);

  // Takes the tensors `made` for those of the names `taken`.
  //
  // REQUIRES: there are these, and none of the others; `made` point into the files.
  void Exchange(const std::vector<std::string>& taken,
                std::vector<std::pair<std::string, HostTensor>> made);

  // The tensor `name`, which must have this shape.
  //
  // Returns: INVALID_ARGUMENT, with the name and both shapes, if it is missing or has another.
  absl::StatusOr<HostTensor> Find(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  absl::Status Add(std::unique_ptr<TensorFile> file);
  static absl::StatusOr<Checkpoint> OpenIndexed(const std::string& folder);

  std::string folder_;
  std::vector<std::unique_ptr<TensorFile>> files_;
  std::map<std::string, HostTensor> tensors_;
  size_t total_bytes_ = 0;
  bool is_coded_ = false;
  std::string described_by_ = "config.json";
};

}  // namespace retroinfer
