#include "gpu_worker/model/cut_tensor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace retroinfer {
namespace {

// Doubles each byte pair: a coded tensor whose stored bytes are half of its own.
class Doubled final : public TensorCoding {
 public:
  Extent StoredExtent(size_t begin, size_t size) const override { return {begin / 2, size / 2}; }
  void Decode(std::span<const std::byte> stored, size_t begin,
              std::span<std::byte> out) const override {
    EXPECT_EQ(begin % 2, 0u);
    ASSERT_EQ(stored.size(), out.size() / 2);
    for (size_t i = 0; i < out.size(); ++i) out[i] = stored[i / 2];
  }
  absl::Status Check() const override { return absl::InvalidArgumentError("inner"); }
};

class CutTensorTest : public ::testing::Test {
 protected:
  CutTensorTest() {
    std::iota(numbers_.begin(), numbers_.end(), uint16_t{0});
    tensor_ = {.type = WeightType::kBf16,
               .shape = {6, 8},
               .stored = std::as_bytes(std::span(numbers_)),
               .fd = 3,
               .file_offset = 100};
  }

  // The numbers of `part`, read in pieces of `piece` bytes.
  static std::vector<uint16_t> Read(const HostTensor& part, size_t piece) {
    std::vector<std::byte> all;
    std::vector<std::byte> memory;
    for (size_t at = 0; at < part.num_bytes(); at += piece) {
      const auto bytes = part.Bytes(at, std::min(piece, part.num_bytes() - at), memory);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    std::vector<uint16_t> numbers(all.size() / 2);
    std::memcpy(numbers.data(), all.data(), all.size());
    return numbers;
  }
  std::vector<uint16_t> Want(const std::vector<int64_t>& rows,
                             const std::vector<int64_t>& cols) const {
    std::vector<uint16_t> want;
    for (const int64_t row : rows) {
      for (const int64_t col : cols) want.push_back(static_cast<uint16_t>(row * 8 + col));
    }
    return want;
  }

  std::vector<uint16_t> numbers_ = std::vector<uint16_t>(48);
  HostTensor tensor_;
};

TEST_F(CutTensorTest, RowsSideBySideStayWhereTheyAre) {
  const HostTensor part = CutTensor(tensor_, {{2, 3}}, {{0, 8}});
  EXPECT_EQ(part.coding, nullptr);
  EXPECT_EQ(part.file_offset, 100u + 2 * 16);
  EXPECT_EQ(part.shape, (std::vector<int64_t>{3, 8}));
  EXPECT_EQ(Read(part, 1000), Want({2, 3, 4}, {0, 1, 2, 3, 4, 5, 6, 7}));
  const HostTensor joined = CutTensor(tensor_, {{2, 1}, {3, 0}, {3, 2}}, {{0, 8}});
  EXPECT_EQ(joined.coding, nullptr);
  EXPECT_EQ(joined.stored.data(), part.stored.data());
  const HostTensor whole = CutTensor(tensor_, {{0, 6}}, {{0, 8}});
  EXPECT_EQ(whole.stored.size(), tensor_.stored.size());
}

TEST_F(CutTensorTest, RowsApartAndColumnsAreReadInAnyPieces) {
  for (const size_t piece : {2u, 6u, 14u, 1000u}) {
    EXPECT_EQ(Read(CutTensor(tensor_, {{0, 1}, {4, 2}}, {{0, 8}}), piece),
              Want({0, 4, 5}, {0, 1, 2, 3, 4, 5, 6, 7}));
    EXPECT_EQ(Read(CutTensor(tensor_, {{0, 6}}, {{3, 2}}), piece),
              Want({0, 1, 2, 3, 4, 5}, {3, 4}));
    EXPECT_EQ(Read(CutTensor(tensor_, {{1, 1}, {3, 2}}, {{0, 1}, {6, 2}}), piece),
              Want({1, 3, 4}, {0, 6, 7}));
  }
}

TEST_F(CutTensorTest, ReadsNoMoreThanLiesBetween) {
  const HostTensor part = CutTensor(tensor_, {{0, 6}}, {{3, 2}});
  const TensorCoding::Extent extent = part.coding->StoredExtent(4, 8);  // of rows 1 and 2
  EXPECT_EQ(extent.begin, 16u + 6);
  EXPECT_EQ(extent.size, 16u + 4);
}

TEST_F(CutTensorTest, VectorsHaveElements) {
  tensor_.shape = {48};
  const HostTensor part = CutTensor(tensor_, {{5, 2}, {40, 1}}, {{0, 1}});
  EXPECT_EQ(part.shape, std::vector<int64_t>{3});
  EXPECT_EQ(Read(part, 2), (std::vector<uint16_t>{5, 6, 40}));
}

TEST_F(CutTensorTest, WhatIsCodedIsDecoded) {
  std::vector<std::byte> stored(48);
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<std::byte>(i);
  tensor_.stored = stored;
  tensor_.coding = std::make_shared<Doubled>();
  std::vector<uint16_t> want;
  for (const int at : {8 + 2, 8 + 3, 40 + 2, 40 + 3})
    want.push_back(static_cast<uint16_t>(at * 257));
  const HostTensor part = CutTensor(tensor_, {{1, 1}, {5, 1}}, {{2, 2}});
  EXPECT_EQ(Read(part, 2), want);
  EXPECT_EQ(Read(part, 100), want);
  EXPECT_EQ(part.coding->Check().message(), "inner");
  // Rows of what is coded are, too.
  EXPECT_EQ(Read(CutTensor(tensor_, {{1, 2}}, {{0, 8}}), 100).front(), 8 * 257);
}

TEST_F(CutTensorTest, ZerosAreNotStored) {
  const HostTensor zeros = ZerosLike(tensor_);
  EXPECT_EQ(zeros.coding->StoredExtent(10, 20).size, 0u);
  EXPECT_EQ(Read(zeros, 14), std::vector<uint16_t>(48));
}

}  // namespace
}  // namespace retroinfer
