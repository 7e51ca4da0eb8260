#include "gpu_worker/ops/model/arrange_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

struct Order {
  const char* name;
  CodeOrder order;
};
constexpr Order kOrders[] = {{"rows", kCodesInRows},
                             {"AWQ", kAwqCodes},
                             {"GPTQ", kGptqCodes},
                             {"zeros of GPTQ", kGptqZeros},
                             {"zeros of compressed-tensors", kCodesDown}};

class ArrangeCodesTest : public testing::TestWithParam<BackendParam> {
 protected:
  // Packs as those who write checkpoints do: word by word, from the plain codes.
  static std::vector<uint32_t> Packed(const Order& order, const std::vector<uint32_t>& codes,
                                      int64_t rows, int64_t cols) {
    const CodeOrder& how = order.order;
    const int64_t height = how.transposed ? cols : rows;
    const int64_t width = how.transposed ? rows : cols;
    const auto code = [&](int64_t down, int64_t across) -> uint32_t {
      if (down >= height || across >= width) return 0;
      return codes[static_cast<size_t>(how.transposed ? across * cols + down
                                                      : down * cols + across)];
    };
    constexpr int kAwqOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
    std::vector<uint32_t> words;
    for (int64_t down = 0; down < height; down += how.packs_down ? 8 : 1) {
      for (int64_t across = 0; across < width; across += how.packs_down ? 1 : 8) {
        uint32_t word = 0;
        for (int i = 0; i < 8; ++i) {
          const int which = how.interleaved ? kAwqOrder[i] : i;
          word |= (how.packs_down ? code(down + which, across) : code(down, across + which))
                  << 4 * i;
        }
        words.push_back(word);
      }
    }
    return words;
  }

  std::vector<uint32_t> Arranged(const Order& order, const std::vector<uint32_t>& words,
                                 int64_t rows, int64_t cols, const std::vector<int32_t>& columns) {
    const DeviceBuffer in = data_.Upload(words);
    const size_t bytes = kCodesInRows.Bytes(rows, cols);
    const DeviceBuffer out = data_.Upload(std::vector<uint32_t>(bytes / 4, 0xdeadbeef));
    const DeviceBuffer places = data_.Upload(columns.empty() ? std::vector<int32_t>{0} : columns);
    const absl::Status status = backend_->ops->model().ArrangeCodes(
        *backend_->stream,
        {.in = in.as<const std::byte>(),
         .order = order.order,
         .rows = rows,
         .cols = cols,
         .columns = columns.empty() ? DeviceSpan<const int32_t>() : places.as<const int32_t>(),
         .out = out.bytes()});
    EXPECT_TRUE(status.ok()) << status;
    return data_.Download<uint32_t>(out);
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(ArrangeCodesTest, EveryOrderBecomesRows) {
  std::mt19937 random(1);
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 1}, {8, 8}, {16, 24}, {40, 136}, {19, 21}, {600, 72}}) {
    std::vector<uint32_t> codes(static_cast<size_t>(rows * cols));
    for (uint32_t& code : codes) code = random() % 16;
    std::vector<int32_t> shuffled(static_cast<size_t>(cols));
    std::iota(shuffled.begin(), shuffled.end(), 0);
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    for (const Order& order : kOrders) {
      const auto words = Packed(order, codes, rows, cols);
      ASSERT_EQ(words.size() * 4, order.order.Bytes(rows, cols)) << order.name;
      EXPECT_EQ(Arranged(order, words, rows, cols, {}), Packed(kOrders[0], codes, rows, cols))
          << order.name << " " << rows << " x " << cols;
      std::vector<uint32_t> permuted;
      for (int64_t row = 0; row < rows; ++row) {
        for (const int32_t col : shuffled) {
          permuted.push_back(codes[static_cast<size_t>(row * cols + col)]);
        }
      }
      EXPECT_EQ(Arranged(order, words, rows, cols, shuffled),
                Packed(kOrders[0], permuted, rows, cols))
          << order.name << " " << rows << " x " << cols;
    }
  }
}

TEST_P(ArrangeCodesTest, SizesAreChecked) {
  const DeviceBuffer in = data_.Upload(std::vector<uint32_t>(16));
  const DeviceBuffer out = data_.Upload(std::vector<uint32_t>(16));
  const auto arrange = [&](int64_t rows, int64_t cols, size_t skipped, size_t columns) {
    return backend_->ops->model()
        .ArrangeCodes(*backend_->stream, {.in = in.as<const std::byte>(),
                                          .order = kAwqCodes,
                                          .rows = rows,
                                          .cols = cols,
                                          .columns = DeviceSpan<const int32_t>(nullptr, columns),
                                          .out = out.bytes().subspan(skipped, 64 - skipped)})
        .code();
  };
  EXPECT_EQ(arrange(16, 8, 0, 0), absl::StatusCode::kOk);
  EXPECT_EQ(arrange(0, 8, 0, 0), absl::StatusCode::kOk);
  EXPECT_EQ(arrange(17, 8, 0, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(arrange(16, 9, 0, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(arrange(8, 8, 2, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(arrange(-1, 8, 0, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(arrange(16, 8, 0, 7), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, ArrangeCodesTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
