// The tensors of a model in GGUF as a checkpoint has them: numbers, and rows in the order in which
// the model computes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/model/gguf/gguf_files.h"
#include "gpu_worker/model/host_tensor.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/model/tensor_file.h"

namespace retroinfer {

// Where all matrices have one type that is plain numbers, tensors stay what they are; otherwise
// matrices become bf16, block by block, as they are read. Vectors that are plain numbers stay as
// they are. The rows of q and k of architecture llama get their order back: converters put those
// side by side that RoPE turns together. A tensor of all experts, NAME.weight, becomes one for each
// of them, NAME.0.weight and so on.
//
// Threads: immutable.
// Owns:    the files, with others.
class GgufTensors : public TensorFile {
 public:
  // Returns: INVALID_ARGUMENT, naming the tensor, for one whose rows cannot be put in order.
  static absl::StatusOr<GgufTensors> Create(std::shared_ptr<const GgufFiles> files,
                                            const ModelConfig& config);

  const std::map<std::string, HostTensor>& tensors() const override { return tensors_; }

 private:
  explicit GgufTensors(std::shared_ptr<const GgufFiles> files) : files_(std::move(files)) {}
  absl::Status Add(const std::string& name, const GgufTensor& stored, const ModelConfig& config,
                   WeightType matrices);

  std::shared_ptr<const GgufFiles> files_;
  std::map<std::string, HostTensor> tensors_;
};

}  // namespace retroinfer
