// The rows of a tensor of a GGUF file as numbers, in the order that Hugging Face folders have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu_worker/model/gguf/gguf_file.h"
#include "gpu_worker/model/host_tensor.h"

namespace retroinfer {

// Threads: immutable.
class GgufRows : public TensorCoding {
 public:
  // Which rows come one after the other.
  enum class Order {
    kAsStored,
    // Within a head of `head_rows` rows a file has the two of each pair that RoPE turns side by
    // side: 0, d/2, 1, d/2 + 1, ... Hugging Face's have all first ones before all second ones.
    kPairsOfRope,
  };

  // Numbers become `type`: bf16, f16 or f32. The last two only of tensors that are stored so.
  GgufRows(const GgufTensor& tensor, WeightType type, Order order, int64_t head_rows);

  Extent StoredExtent(size_t begin, size_t size) const override;
  void Decode(std::span<const std::byte> stored, size_t begin,
              std::span<std::byte> out) const override;

 private:
  // The row of the file that is row `row` of the tensor.
  size_t StoredRow(size_t row) const;
  // The rows of the file, from which to which, that rows [first, last] of the tensor are.
  size_t FirstStoredRow(size_t row) const;
  size_t LastStoredRow(size_t row) const;
  // Writes elements [from, from + count) of a row that begins at `row`.
  void DecodeRow(const std::byte* row, size_t from, size_t count, std::byte* out) const;

  const GgufBlocks& blocks_;
  const WeightType type_;
  const Order order_;
  const size_t cols_;
  const size_t row_bytes_;  // of the file
  const size_t head_rows_;
};

}  // namespace retroinfer
