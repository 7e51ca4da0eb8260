// Moves test data between host vectors and device memory, and makes it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "common/log/check.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/matrix.h"
#include "gpu_worker/ops/model/weight_view.h"
#include "tests/support/backends.h"

namespace retroinfer::test_support {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The nearest bf16, ties to even, as bits; and back.
inline uint16_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline float FromBf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// The nearest f16, ties to even, by the compiler's own conversion.
inline uint16_t ToF16(float value) { return std::bit_cast<uint16_t>(static_cast<_Float16>(value)); }
inline float FromF16(uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }

// One element of `dtype`.
inline void ToElement(float value, DType dtype, std::byte* element) {
  if (dtype == DType::kF32) {
    std::memcpy(element, &value, sizeof(value));
    return;
  }
  const uint16_t half = dtype == DType::kBf16 ? ToBf16(value) : ToF16(value);
  std::memcpy(element, &half, sizeof(half));
}
inline float FromElement(const std::byte* element, DType dtype) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, element, sizeof(value));
    return value;
  }
  uint16_t half;
  std::memcpy(&half, element, sizeof(half));
  return dtype == DType::kBf16 ? FromBf16(half) : FromF16(half);
}

// Values as elements of `dtype`, and back. Reading back what was written gives the rounded values
// that a reference has to start from.
inline std::vector<std::byte> ToBytes(std::span<const float> values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * DTypeBytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    ToElement(values[i], dtype, bytes.data() + i * DTypeBytes(dtype));
  }
  return bytes;
}
inline std::vector<float> FromBytes(std::span<const std::byte> bytes, DType dtype) {
  std::vector<float> values(bytes.size() / DTypeBytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = FromElement(bytes.data() + i * DTypeBytes(dtype), dtype);
  }
  return values;
}

// Independent normal values; the same for the same seed.
inline std::vector<float> RandomNormal(size_t size, uint64_t seed, float deviation = 1.0f) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(size);
  for (float& value : values) value = normal(generator);
  return values;
}

// Device memory on one backend, and copies that wait.
class DeviceData {
 public:
  explicit DeviceData(Backend& backend) : backend_(backend) {}

  DeviceBuffer Allocate(size_t bytes) {
    auto buffer = backend_.device->Allocate(bytes, MemoryPurpose::kActivations);
    RI_CHECK(buffer.ok());
    return *std::move(buffer);
  }
  template <typename T>
  DeviceBuffer Upload(std::span<const T> host) {
    DeviceBuffer buffer = Allocate(host.size_bytes());
    RI_CHECK(backend_.device->Upload(*backend_.stream, std::as_bytes(host), buffer.bytes()).ok());
    RI_CHECK(backend_.stream->Synchronize().ok());
    return buffer;
  }
  template <typename T>
  DeviceBuffer Upload(const std::vector<T>& host) {
    return Upload(std::span<const T>(host));
  }
  template <typename T>
  std::vector<T> Download(DeviceSpan<const T> device) {
    std::vector<T> host(device.size());
    const DeviceSpan<const std::byte> bytes(
        reinterpret_cast<const std::byte*>(device.device_data()), device.size_bytes());
    RI_CHECK(backend_.device
                 ->Download(*backend_.stream, bytes, std::as_writable_bytes(std::span<T>(host)))
                 .ok());
    RI_CHECK(backend_.stream->Synchronize().ok());
    return host;
  }
  template <typename T>
  std::vector<T> Download(const DeviceBuffer& buffer) {
    return Download(DeviceSpan<const T>(buffer.as<T>()));
  }

  // A matrix of activations (rounded to the backend's activation dtype) in memory of its own.
  struct Matrix {
    DeviceBuffer buffer;
    MatrixView view;
  };
  Matrix UploadMatrix(std::span<const float> values, int64_t rows, int64_t cols, DType dtype) {
    const std::vector<std::byte> bytes = ToBytes(values, dtype);
    Matrix matrix{Upload(bytes), {}};
    matrix.view = MatrixView::Dense(matrix.buffer.bytes(), dtype, rows, cols);
    return matrix;
  }
  Matrix Activations(std::span<const float> values, int64_t rows, int64_t cols) {
    return UploadMatrix(values, rows, cols, backend_.ops->model().activation_dtype());
  }
  // What values become as activations of this backend.
  std::vector<float> Rounded(std::span<const float> values) {
    const DType dtype = backend_.ops->model().activation_dtype();
    return FromBytes(ToBytes(values, dtype), dtype);
  }
  // Relative error of an operation that computes in f32 and rounds its result to an activation.
  double Tolerance() const {
    return backend_.ops->model().activation_dtype() == DType::kF32 ? 1e-6 : 1.0 / 256;
  }
  // An output full of NaN.
  Matrix Poisoned(int64_t rows, int64_t cols) {
    return Activations(std::vector<float>(static_cast<size_t>(rows * cols), kNan), rows, cols);
  }
  std::vector<float> Values(const Matrix& matrix) {
    return FromBytes(Download<std::byte>(matrix.buffer), matrix.view.dtype);
  }

 private:
  Backend& backend_;
};

// A matrix without gaps as the weights of a checkpoint.
inline WeightView AsWeights(const MatrixView& matrix) {
  RI_CHECK(matrix.row_stride == matrix.cols);
  const WeightType type = matrix.dtype == DType::kF32    ? WeightType::kF32
                          : matrix.dtype == DType::kBf16 ? WeightType::kBf16
                                                         : WeightType::kF16;
  return {matrix.data, FormOf(type), matrix.rows, matrix.cols};
}

// Largest |got - want| over the largest |want|. NaN anywhere in `got` gives infinity.
inline double RelativeError(std::span<const float> got, std::span<const double> want) {
  RI_CHECK(got.size() == want.size());
  double error = 0;
  double scale = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i])) return std::numeric_limits<double>::infinity();
    error = std::max(error, std::abs(static_cast<double>(got[i]) - want[i]));
    scale = std::max(scale, std::abs(want[i]));
  }
  return scale == 0 ? error : error / scale;
}

}  // namespace retroinfer::test_support
