// A weights file in safetensors format.
//
//   OFFSET   SIZE   DESCRIPTION
//   0        8      n, length of the header, little-endian
//   8        n      JSON: {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ...}
//   8 + n    rest   data; offsets count from here. Tensors fill it without gap or overlap.
//
// Nothing in a header is believed: names, types, shapes and offsets are checked against each other
// and against the file's size before any tensor can be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "gpu_worker/model/host_tensor.h"
#include "gpu_worker/model/mapped_file.h"
#include "gpu_worker/model/tensor_file.h"

namespace retroinfer {

// Threads: immutable after Open.
// Owns:    the mapping and the descriptor that its tensors point into.
class SafetensorsFile : public TensorFile {
 public:
  static constexpr size_t kMaxHeaderBytes = 100'000'000;
  static constexpr size_t kMaxTensors = 65'536;
  static constexpr size_t kMaxNameBytes = 1024;
  static constexpr size_t kMaxDimensions = 8;

  // Maps `path` and checks its header.
  //
  // Returns: INVALID_ARGUMENT, with file and tensor, if anything does not fit; UNIMPLEMENTED for
  //          an element type other than F32, F16, BF16, F8_E4M3, I32 and I64.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::map<std::string, HostTensor>& tensors() const override { return tensors_; }

 private:
  MappedFile file_;
  std::map<std::string, HostTensor> tensors_;
};

}  // namespace retroinfer
