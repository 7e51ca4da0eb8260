#include "gpu_worker/model/gguf/gguf_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "gpu_worker/model/small_floats.h"
#include "tests/gpu_worker/model/gguf/golden_gguf.h"

namespace retroinfer {
namespace {

// Of rows of one number in F32 each, which is the row's number in the file.
struct NumberedRows {
  explicit NumberedRows(int64_t rows) : numbers(static_cast<size_t>(rows)) {
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
    tensor.blocks = *GgufBlocksOf(0);
    tensor.shape = {rows, 1};
    tensor.bytes = std::as_bytes(std::span(numbers));
  }
  std::vector<float> numbers;
  GgufTensor tensor;
};

std::vector<std::byte> DecodePart(const GgufRows& rows, const GgufTensor& tensor, size_t begin,
                                  size_t size) {
  std::vector<std::byte> out(size);
  const TensorCoding::Extent extent = rows.StoredExtent(begin, size);
  rows.Decode(tensor.bytes.subspan(extent.begin, extent.size), begin, out);
  return out;
}

TEST(GgufRowsTest, PairsOfRopeAreTakenApart) {
  const NumberedRows stored(16);
  const GgufRows rows(stored.tensor, WeightType::kF32, GgufRows::Order::kPairsOfRope, 8);
  const std::vector<std::byte> bytes = DecodePart(rows, stored.tensor, 0, 64);
  std::vector<float> numbers(16);
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  EXPECT_EQ(numbers, (std::vector<float>{0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15}));
}

// Loading asks for pieces that begin and end anywhere.
TEST(GgufRowsTest, AnyPartIsThatPartOfTheWhole) {
  const auto file = GgufFile::Open(test_support::GoldenGgufPath("blocks.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  for (const auto& [name, tensor] : file->tensors()) {
    SCOPED_TRACE(name);
    const GgufRows rows(tensor, WeightType::kBf16, GgufRows::Order::kAsStored, 0);
    const size_t size = static_cast<size_t>(tensor.rows() * tensor.cols()) * 2;
    const std::vector<std::byte> whole = DecodePart(rows, tensor, 0, size);
    for (const size_t begin : {size_t{0}, size_t{2}, size_t{510}, size_t{1024}, size_t{1026}}) {
      for (const size_t count : {size_t{2}, size_t{62}, size_t{64}, size_t{1030}, size - begin}) {
        const std::vector<std::byte> part = DecodePart(rows, tensor, begin, count);
        EXPECT_TRUE(std::equal(part.begin(), part.end(),
                               whole.begin() + static_cast<std::ptrdiff_t>(begin)))
            << begin << " " << count;
      }
    }
    EXPECT_TRUE(DecodePart(rows, tensor, size, 0).empty());
  }
}

TEST(GgufRowsTest, PartsOfPermutedRowsAreThatPartOfTheWhole) {
  const NumberedRows stored(24);
  const GgufRows rows(stored.tensor, WeightType::kBf16, GgufRows::Order::kPairsOfRope, 8);
  const std::vector<std::byte> whole = DecodePart(rows, stored.tensor, 0, 48);
  for (size_t begin = 0; begin < 48; begin += 2) {
    for (size_t end = begin + 2; end <= 48; end += 2) {
      const std::vector<std::byte> part = DecodePart(rows, stored.tensor, begin, end - begin);
      EXPECT_TRUE(
          std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin)));
      // No more is read than the heads that the rows are of.
      EXPECT_EQ(rows.StoredExtent(begin, end - begin).size, ((end - 2) / 16 - begin / 16 + 1) * 32);
    }
  }
}

TEST(GgufRowsTest, NumbersAreRoundedToTheNearest) {
  std::vector<float> numbers = {1.0f, 1.00390625f, -3.1415927f};
  GgufTensor tensor{.blocks = *GgufBlocksOf(0), .shape = {3}, .bytes = {}};
  tensor.bytes = std::as_bytes(std::span(numbers));
  const GgufRows rows(tensor, WeightType::kBf16, GgufRows::Order::kAsStored, 0);
  const std::vector<std::byte> bytes = DecodePart(rows, tensor, 0, 6);
  for (size_t i = 0; i < 3; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, bytes.data() + 2 * i, sizeof(half));
    EXPECT_EQ(half, ToBf16(numbers[i]));
  }
}

}  // namespace
}  // namespace retroinfer
