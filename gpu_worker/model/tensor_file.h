// Where a checkpoint's tensors come from: a file of one format or another.
#pragma once

#include <map>
#include <string>

#include "gpu_worker/model/host_tensor.h"

namespace retroinfer {

// Threads: immutable.
// Owns:    what its tensors point into.
class TensorFile {
 public:
  virtual ~TensorFile() = default;

  // By name.
  virtual const std::map<std::string, HostTensor>& tensors() const = 0;
};

}  // namespace retroinfer
