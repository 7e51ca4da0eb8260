// The scales of matrices in 8 bits, as a checkpoint stores them, and on their way to WeightScales.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/weight_quantization.h"
#include "gpu_worker/ops/model/weight_view.h"

namespace retroinfer {

// The name of the scales of matrix `name`, which ends in ".weight".
std::string ScaleName(const WeightQuantization& quantization, const std::string& name);

// Whether a tensor of a quantized checkpoint scales what is not rounded here: activations, keys and
// values.
bool IsScaleWithoutEffect(const std::string& name);

// Checks that the scales of matrix `name` [rows, cols] are there, with the shape and a type that
// they must have.
//
// Returns: INVALID_ARGUMENT, with the tensor, what it is and what is accepted.
absl::Status CheckScaleTensor(const WeightQuantization& quantization, const Checkpoint& checkpoint,
                              const std::string& name, const std::vector<int64_t>& shape);

// Of matrices that lie one below the other.
class StoredScales {
 public:
  explicit StoredScales(const WeightQuantization& quantization) : part_(quantization.part) {}

  // The scales of the next matrix, of `matrix_shape`, which will lie at `at` of the memory that
  // Read gets.
  //
  // REQUIRES: CheckScaleTensor has passed them.
  void Add(const std::string& name, const HostTensor& scales,
           const std::vector<int64_t>& matrix_shape, size_t at);

  // Copies the scales from device memory and waits for that.
  //
  // Returns: INVALID_ARGUMENT, with the tensor, if one is not finite or not above zero; errors of
  //          the device.
  absl::StatusOr<WeightScales> Read(Device& device, DeviceSpan<std::byte> memory) const;

 private:
  struct Part {
    std::string name;
    WeightType type;
    size_t at;
    size_t count;  // of scales
    int64_t rows;  // of the matrix
    int64_t cols;
  };

  // Rows of all matrices together that surely have the same scales.
  int64_t RowsEach() const;

  ScaledPart part_;
  std::vector<Part> parts_;
};

}  // namespace retroinfer
