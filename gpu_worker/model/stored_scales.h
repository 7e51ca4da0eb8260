// The tensors of matrices of codes, as a checkpoint stores them: are they there, and what their
// scales are on their way to WeightScales.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/weight_quantization.h"
#include "gpu_worker/ops/model/weight_view.h"

namespace retroinfer {

// Whether a tensor of a quantized checkpoint scales what is not rounded here: activations, keys and
// values.
bool IsScaleWithoutEffect(const std::string& name);

// The tensors of matrix `name`, if the checkpoint has it as codes of its quantization.
std::optional<CodedTensors> FindCodes(const std::optional<WeightQuantization>& quantization,
                                      const Checkpoint& checkpoint, const std::string& name);

// Checks that the tensors of matrix `name` [rows, cols], which FindCodes has found, are there with
// the shapes and types that they must have.
//
// Returns: INVALID_ARGUMENT, with the tensor, what it is and what is accepted.
absl::Status CheckCodes(const WeightQuantization& quantization, const Checkpoint& checkpoint,
                        const std::string& name, const std::vector<int64_t>& shape);

// Of matrices that lie one below the other.
class StoredScales {
 public:
  explicit StoredScales(const StoredForm& form) : form_(form) {}

  // The scales of the next matrix, [rows, cols], which will lie at `at` of the memory that Read
  // gets.
  //
  // REQUIRES: CheckCodes has passed them.
  void Add(const std::string& name, const HostTensor& scales, int64_t rows, int64_t cols,
           size_t at);
  // Its zeros, if the form has them, after its scales.
  void AddZeros(const std::string& name, const HostTensor& zeros, size_t at);

  // Copies scales and zeros from device memory and waits for that.
  //
  // Returns: INVALID_ARGUMENT, with the tensor, if a scale is not finite or not above zero, or a
  //          zero not finite; errors of the device.
  absl::StatusOr<WeightScales> Read(Device& device, DeviceSpan<std::byte> memory) const;

 private:
  struct Stored {
    std::string name;
    WeightType type = WeightType::kF32;
    size_t at = 0;
    size_t bytes = 0;
  };
  struct Part {
    Stored scales;
    Stored zeros;
    int64_t rows;  // of the matrix
    int64_t cols;
  };

  // Rows of all matrices together that surely have the same scales.
  int64_t RowsEach() const;
  absl::Status AppendScales(const Part& part, std::span<const std::byte> bytes,
                            WeightScales& scales) const;
  absl::Status AppendZeros(const Part& part, std::span<const std::byte> bytes,
                           WeightScales& scales) const;

  StoredForm form_;
  std::vector<Part> parts_;
};

}  // namespace retroinfer
