#include "gpu_worker/model/gguf/gguf_rows.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/log/check.h"
#include "gpu_worker/model/small_floats.h"

namespace retroinfer {

GgufRows::GgufRows(const GgufTensor& tensor, WeightType type, Order order, int64_t head_rows)
    : blocks_(*tensor.blocks),
      type_(type),
      order_(order),
      cols_(static_cast<size_t>(tensor.cols())),
      row_bytes_(cols_ / blocks_.elements * blocks_.bytes),
      head_rows_(static_cast<size_t>(head_rows)) {
  RI_CHECK(order == Order::kAsStored ||
           (head_rows > 0 && head_rows % 2 == 0 && tensor.rows() % head_rows == 0));
  RI_CHECK(type == WeightType::kBf16 || blocks_.plain == type);
}

size_t GgufRows::StoredRow(size_t row) const {
  if (order_ == Order::kAsStored) return row;
  const size_t in_head = row % head_rows_;
  const size_t half = head_rows_ / 2;
  return row - in_head + in_head % half * 2 + in_head / half;
}

size_t GgufRows::FirstStoredRow(size_t row) const {
  return order_ == Order::kAsStored ? row : row / head_rows_ * head_rows_;
}

size_t GgufRows::LastStoredRow(size_t row) const {
  return order_ == Order::kAsStored ? row : row / head_rows_ * head_rows_ + head_rows_ - 1;
}

// Whole blocks of the rows that are touched, whole heads where rows change places.
TensorCoding::Extent GgufRows::StoredExtent(size_t begin, size_t size) const {
  if (size == 0) return {};
  const size_t element = WeightTypeBytes(type_);
  const size_t first = begin / element;
  const size_t last = (begin + size - 1) / element;
  if (order_ == Order::kAsStored) {
    const size_t from = first / blocks_.elements * blocks_.bytes;
    return {from, (last / blocks_.elements + 1) * blocks_.bytes - from};
  }
  const size_t from = FirstStoredRow(first / cols_) * row_bytes_;
  return {from, (LastStoredRow(last / cols_) + 1) * row_bytes_ - from};
}

void GgufRows::Decode(std::span<const std::byte> stored, size_t begin,
                      std::span<std::byte> out) const {
  if (out.empty()) return;
  const size_t element = WeightTypeBytes(type_);
  RI_CHECK(begin % element == 0 && out.size() % element == 0);
  const Extent extent = StoredExtent(begin, out.size());
  RI_CHECK(stored.size() == extent.size);
  const size_t end = (begin + out.size()) / element;
  for (size_t at = begin / element; at < end;) {
    const size_t row = at / cols_;
    const size_t from = at % cols_;
    const size_t count = std::min(end - at, cols_ - from);
    const size_t block = from / blocks_.elements;
    const size_t place = StoredRow(row) * row_bytes_ + block * blocks_.bytes - extent.begin;
    DecodeRow(stored.data() + place, from % blocks_.elements, count,
              out.data() + at * element - begin);
    at += count;
  }
}

void GgufRows::DecodeRow(const std::byte* row, size_t from, size_t count, std::byte* out) const {
  const size_t element = WeightTypeBytes(type_);
  if (blocks_.plain == type_) {
    std::memcpy(out, row + from * element, count * element);
    return;
  }
  std::array<float, kGgufBlockElementsMax> numbers;
  while (count > 0) {
    blocks_.decode(row, numbers.data());
    const size_t taken = std::min(count, blocks_.elements - from);
    for (size_t i = 0; i < taken; ++i) {
      const uint16_t rounded = ToBf16(numbers[from + i]);
      std::memcpy(out + i * sizeof(rounded), &rounded, sizeof(rounded));
    }
    out += taken * element;
    row += blocks_.bytes;
    count -= taken;
    from = 0;
  }
}

}  // namespace retroinfer
