// Ranks on GPUs of one machine, each a thread here: the operations' contracts over peer access, in
// the host's memory, and in recorded work. Skipped with fewer than two GPUs.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/ops/backend/cuda/cuda_ops.h"
#include "gpu_worker/ops/collective/rank_memory.h"
#include "tests/gpu_worker/ops/collective/layer_end.h"
#include "tests/gpu_worker/ops/collective/rank_matrices.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/rank_threads.h"

namespace retroinfer {
namespace {

using test_support::Backend;
using test_support::DeviceData;
using test_support::DrawnFor;
using test_support::ExpectTheSameAsOne;
using test_support::LayerEnd;
using test_support::LayerEndForm;
using test_support::OnRanks;
using test_support::RandomNormal;
using test_support::SumOfRanks;

// Memory that each rank maps for itself, as processes do: a page is given to one device.
class RankFile {
 public:
  explicit RankFile(int num_ranks)
      : bytes_(RankMemory::Bytes(num_ranks, RankMemory::kAlignment, RankMemory::kPieceBytes)) {
    fd_ = ::memfd_create("ranks", MFD_CLOEXEC);
    RI_CHECK(fd_ >= 0 && ::ftruncate(fd_, static_cast<off_t>(bytes_)) == 0);
    const auto memory = Map();
    RI_CHECK(RankMemory::Format(memory, num_ranks, RankMemory::kAlignment, RankMemory::kPieceBytes)
                 .ok());
    ::munmap(memory.data(), memory.size());
  }
  ~RankFile() { ::close(fd_); }
  // Stays mapped.
  std::span<std::byte> Map() const {
    void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    RI_CHECK(memory != MAP_FAILED);
    return {static_cast<std::byte*>(memory), bytes_};
  }

 private:
  const size_t bytes_;
  int fd_ = -1;
};

class CudaCollectiveTest : public ::testing::TestWithParam<cuda::PeerMemory> {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
      GTEST_SKIP() << "needs two GPUs, there are " << count;
    }
    num_ranks_ = std::min(count, 8);
  }

  // Calls body(rank, backend) on a thread for each rank, with the rank's device current.
  template <typename Body>
  void Run(const Body& body) {
    const RankFile file(num_ranks_);
    OnRanks(num_ranks_, [&](int rank) {
      ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
      auto ranks = RankMemory::Attach(file.Map(), {rank, num_ranks_});
      ASSERT_TRUE(ranks.ok()) << ranks.status();
      auto device = CudaDevice::Create({.ordinal = rank, .memory_utilization = 0.2});
      ASSERT_TRUE(device.ok()) << device.status();
      auto ops = CudaOps::Create(**device, &*ranks, GetParam());
      ASSERT_TRUE(ops.ok()) << ops.status();
      if (GetParam() == cuda::PeerMemory::kHost) {
        ASSERT_FALSE((*ops)->peer_access().ok());
      }
      Backend backend;
      backend.device = *std::move(device);
      backend.ops = *std::move(ops);
      auto stream = backend.device->CreateStream(StreamKind::kCompute);
      ASSERT_TRUE(stream.ok());
      backend.stream = *std::move(stream);
      body(rank, backend);
      EXPECT_TRUE(backend.stream->Synchronize().ok());
      EXPECT_TRUE(ranks->Meet().ok());  // nobody's memory goes while others read it
      backend.stream.reset();
      backend.ops.reset();
    });
  }

  int num_ranks_ = 0;
};

// One shot, its largest, the smallest of two shots, parts that end anywhere, and slices for several
// turns of all blocks.
constexpr int64_t kRows[] = {1, 3, 64, 65, 128, 129, 300, 1024, 2050};
constexpr int64_t kCols = 4096;

TEST_P(CudaCollectiveTest, SumsAreInTheOrderOfRanksOnAll) {
  Run([&](int /*rank*/, Backend& backend) {
    const int rank = backend.ops->collective().parallel().rank;
    DeviceData data(backend);
    for (const int64_t rows : kRows) {
      for (const bool accumulate : {false, true}) {
        const int64_t elements = rows * kCols;
        const auto upload = [&](int of) {
          return data.UploadMatrix(DrawnFor(of, elements, DType::kBf16), rows, kCols, DType::kBf16);
        };
        const DeviceData::Matrix in = upload(rank);
        const DeviceData::Matrix out = upload(accumulate ? -1 : 99);
        const absl::Status status = backend.ops->collective().AllReduce(
            *backend.stream, {.in = in.view, .out = out.view, .accumulate = accumulate});
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(data.Values(out) == SumOfRanks(num_ranks_, elements, DType::kBf16, accumulate))
            << rows;
      }
    }
  });
}

TEST_P(CudaCollectiveTest, SumsMayReplaceWhatIsAddedAndLeaveGaps) {
  Run([&](int rank, Backend& backend) {
    DeviceData data(backend);
    for (const int64_t rows : {3, 300}) {
      const int64_t elements = rows * kCols;
      const DeviceData::Matrix wide =
          data.UploadMatrix(DrawnFor(rank, elements, DType::kBf16), rows, kCols, DType::kBf16);
      const auto before = data.Values(wide);
      const MatrixView columns = wide.view.Columns(64, kCols - 128);
      const absl::Status status =
          backend.ops->collective().AllReduce(*backend.stream, {.in = columns, .out = columns});
      ASSERT_TRUE(status.ok()) << status;
      const auto after = data.Values(wide);
      auto want = SumOfRanks(num_ranks_, elements, DType::kBf16, false);
      for (size_t i = 0; i < want.size(); ++i) {
        const int64_t col = static_cast<int64_t>(i) % kCols;
        if (col < 64 || col >= kCols - 64) want[i] = before[i];
      }
      EXPECT_TRUE(after == want) << rows;
    }
  });
}

// One and two chunks a thread, rows that are given and rows that are shown, and what the kernel is
// not made for.
TEST_P(CudaCollectiveTest, NormsOfSumsHaveTheBitsOfBothBehindEachOther) {
  Run([&](int rank, Backend& backend) {
    for (const int64_t cols : {896, 2880, 4096, 5120, 8192}) {
      for (const int64_t rows : {1, 5, 32, 33, 64}) ExpectTheSameAsOne(backend, rank, rows, cols);
    }
    ExpectTheSameAsOne(backend, rank, 65, 4096);
    ExpectTheSameAsOne(backend, rank, 2, 8200);
  });
}

// All ways of exchanging, behind each other without a stop, as recorded work that runs again: rows
// and slices are not written before all have read them.
TEST_P(CudaCollectiveTest, NormsOfSumsAndSumsMayFollowEachOther) {
  Run([&](int rank, Backend& backend) {
    LayerEnd apart(backend, rank, 40, kCols), few_apart(backend, rank, 3, kCols);
    LayerEnd as_one(backend, rank, 40, kCols), few_as_one(backend, rank, 3, kCols);
    DeviceData data(backend);
    const DeviceData::Matrix in =
        data.UploadMatrix(DrawnFor(rank, 150 * kCols, DType::kBf16), 150, kCols, DType::kBf16);
    const DeviceData::Matrix out =
        data.UploadMatrix(std::vector<float>(150 * kCols), 150, kCols, DType::kBf16);
    const auto layer = [&](bool is_one) -> absl::Status {
      for (const LayerEndForm form : test_support::kLayerEndForms) {
        for (int i = 0; i < 3; ++i) {
          RETURN_IF_ERROR((is_one ? few_as_one : few_apart).Run(form, is_one));
        }
        RETURN_IF_ERROR((is_one ? as_one : apart).Run(form, is_one));
        RETURN_IF_ERROR(
            backend.ops->collective().AllReduce(*backend.stream, {.in = in.view, .out = out.view}));
      }
      return absl::OkStatus();
    };
    auto graph = backend.device->Capture(*backend.stream, [&] { return layer(true); });
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (int i = 0; i < 30; ++i) {
      ASSERT_TRUE(backend.device->Launch(*backend.stream, **graph).ok());
      ASSERT_TRUE(layer(false).ok());
    }
    EXPECT_TRUE(as_one.Results() == apart.Results());
    EXPECT_TRUE(few_as_one.Results() == few_apart.Results());
    EXPECT_TRUE(data.Values(out) == SumOfRanks(num_ranks_, 150 * kCols, DType::kBf16, false));
  });
}

// Calls of all sizes behind each other, without a stop: nobody's memory is written too early.
TEST_P(CudaCollectiveTest, SumsMayFollowEachOther) {
  Run([&](int rank, Backend& backend) {
    DeviceData data(backend);
    constexpr int64_t kElements = 65 * kCols;
    const DeviceData::Matrix in =
        data.UploadMatrix(DrawnFor(rank, kElements, DType::kBf16), 65, kCols, DType::kBf16);
    const DeviceData::Matrix out =
        data.UploadMatrix(std::vector<float>(kElements), 65, kCols, DType::kBf16);
    const auto want = SumOfRanks(num_ranks_, kElements, DType::kBf16, false);
    for (int i = 0; i < 200; ++i) {
      for (const int64_t rows : {1, 64, 2, 65, 17, 48}) {
        ASSERT_TRUE(backend.ops->collective()
                        .AllReduce(*backend.stream,
                                   {.in = in.view.Rows(0, rows), .out = out.view.Rows(0, rows)})
                        .ok());
      }
      if (i % 20 != 0) continue;
      const auto got = data.Values(out);
      EXPECT_TRUE(std::equal(got.begin(), got.begin() + 48 * kCols, want.begin())) << i;
    }
  });
}

TEST_P(CudaCollectiveTest, ColumnsAreGathered) {
  constexpr int64_t kVocab = 32003;
  const auto all = RandomNormal(static_cast<size_t>(5 * kVocab), 7);
  Run([&](int rank, Backend& backend) {
    DeviceData data(backend);
    const Share share = ShareOf({rank, num_ranks_}, kVocab, 16);
    std::vector<float> mine(all.size(), test_support::kNan);
    for (size_t i = 0; i < all.size(); ++i) {
      const int64_t col = static_cast<int64_t>(i) % kVocab;
      if (col >= share.first && col < share.first + share.count) mine[i] = all[i];
    }
    const DeviceData::Matrix out = data.UploadMatrix(mine, 5, kVocab, DType::kF32);
    const absl::Status status = backend.ops->collective().AllGather(
        *backend.stream,
        {.in = out.view.Columns(share.first, share.count), .out = out.view, .unit = 16});
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(data.Values(out) == all);
  });
}

TEST_P(CudaCollectiveTest, RecordedSumsRunAgain) {
  Run([&](int rank, Backend& backend) {
    DeviceData data(backend);
    const int64_t elements = 8 * kCols;
    const DeviceData::Matrix in =
        data.UploadMatrix(DrawnFor(rank, elements, DType::kBf16), 8, kCols, DType::kBf16);
    const DeviceData::Matrix out = data.UploadMatrix(
        std::vector<float>(static_cast<size_t>(elements)), 8, kCols, DType::kBf16);
    auto graph = backend.device->Capture(*backend.stream, [&] {
      return backend.ops->collective().AllReduce(*backend.stream, {.in = in.view, .out = out.view});
    });
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(backend.device->Launch(*backend.stream, **graph).ok());
    }
    EXPECT_TRUE(data.Values(out) == SumOfRanks(num_ranks_, elements, DType::kBf16, false));
  });
}

INSTANTIATE_TEST_SUITE_P(Memory, CudaCollectiveTest,
                         ::testing::Values(cuda::PeerMemory::kAuto, cuda::PeerMemory::kHost),
                         [](const auto& info) {
                           return info.param == cuda::PeerMemory::kHost ? "Host" : "Auto";
                         });

}  // namespace
}  // namespace retroinfer
