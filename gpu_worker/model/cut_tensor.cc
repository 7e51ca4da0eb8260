// Bytes of a part are runs of bytes of the tensor. A part of whole rows is treated as one row.
#include "gpu_worker/model/cut_tensor.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "common/log/check.h"

namespace retroinfer {
namespace {

struct ByteRun {
  size_t begin = 0;  // of the tensor's row
  size_t size = 0;
};

class CutCoding final : public TensorCoding {
 public:
  // `inner`: of the tensor; may be null. `row_bytes`: of the tensor. `runs`: of each of its `rows`.
  CutCoding(std::shared_ptr<const TensorCoding> inner, size_t row_bytes, std::vector<Share> rows,
            std::vector<ByteRun> runs)
      : inner_(std::move(inner)),
        row_bytes_(row_bytes),
        rows_(std::move(rows)),
        runs_(std::move(runs)) {
    for (const ByteRun& run : runs_) cut_row_bytes_ += run.size;
  }

  Extent StoredExtent(size_t begin, size_t size) const override {
    if (size == 0) return {};
    size_t first = std::numeric_limits<size_t>::max();
    size_t end = 0;
    ForRuns(begin, size, [&](size_t at, size_t, size_t count) {
      const Extent extent = StoredOf(at, count);
      first = std::min(first, extent.begin);
      end = std::max(end, extent.begin + extent.size);
    });
    return {first, end - first};
  }

  void Decode(std::span<const std::byte> stored, size_t begin,
              std::span<std::byte> out) const override {
    if (out.empty()) return;
    const Extent all = StoredExtent(begin, out.size());
    RI_CHECK(stored.size() == all.size);
    ForRuns(begin, out.size(), [&](size_t at, size_t to, size_t count) {
      const Extent extent = StoredOf(at, count);
      const auto of_run = stored.subspan(extent.begin - all.begin, extent.size);
      if (inner_ == nullptr) {
        std::memcpy(out.data() + to, of_run.data(), count);
      } else {
        inner_->Decode(of_run, at, out.subspan(to, count));
      }
    });
  }

  absl::Status Check() const override {
    return inner_ == nullptr ? absl::OkStatus() : inner_->Check();
  }

 private:
  Extent StoredOf(size_t at, size_t count) const {
    return inner_ == nullptr ? Extent{at, count} : inner_->StoredExtent(at, count);
  }
  size_t TensorRow(size_t row) const {
    for (const Share& share : rows_) {
      if (row < static_cast<size_t>(share.count)) return static_cast<size_t>(share.first) + row;
      row -= static_cast<size_t>(share.count);
    }
    RI_CHECK(false);
    return 0;
  }
  // Calls body(byte of the tensor, byte of the part less `begin`, bytes) for each run of the part's
  // bytes [begin, begin + size).
  template <typename Body>
  void ForRuns(size_t begin, size_t size, const Body& body) const {
    const size_t end = begin + size;
    for (size_t at = begin; at < end;) {
      const size_t row = TensorRow(at / cut_row_bytes_) * row_bytes_;
      size_t in_row = at % cut_row_bytes_;
      for (const ByteRun& run : runs_) {
        if (in_row >= run.size) {
          in_row -= run.size;
          continue;
        }
        const size_t count = std::min(run.size - in_row, end - at);
        body(row + run.begin + in_row, at - begin, count);
        at += count;
        in_row = 0;
        if (at == end) break;
      }
    }
  }

  const std::shared_ptr<const TensorCoding> inner_;
  const size_t row_bytes_;
  const std::vector<Share> rows_;
  const std::vector<ByteRun> runs_;
  size_t cut_row_bytes_ = 0;
};

class Zeros final : public TensorCoding {
 public:
  Extent StoredExtent(size_t, size_t) const override { return {}; }
  void Decode(std::span<const std::byte>, size_t, std::span<std::byte> out) const override {
    std::fill(out.begin(), out.end(), std::byte{0});
  }
};

// Shares that lie side by side are one.
std::vector<Share> Joined(const std::vector<Share>& shares) {
  std::vector<Share> joined;
  for (const Share& share : shares) {
    if (share.count == 0) continue;
    if (!joined.empty() && joined.back().first + joined.back().count == share.first) {
      joined.back().count += share.count;
    } else {
      joined.push_back(share);
    }
  }
  return joined;
}

std::vector<ByteRun> RunsOf(const std::vector<Share>& shares, size_t bytes) {
  std::vector<ByteRun> runs;
  for (const Share& share : shares) {
    runs.push_back(
        {static_cast<size_t>(share.first) * bytes, static_cast<size_t>(share.count) * bytes});
  }
  return runs;
}

int64_t CountOf(const std::vector<Share>& shares) {
  int64_t count = 0;
  for (const Share& share : shares) count += share.count;
  return count;
}

}  // namespace

HostTensor CutTensor(const HostTensor& tensor, const std::vector<Share>& rows,
                     const std::vector<Share>& cols) {
  const int64_t num_rows = tensor.shape.at(0);
  const int64_t num_cols = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
  std::vector<Share> taken_rows = Joined(rows);
  const std::vector<Share> taken_cols = Joined(cols);
  RI_CHECK(tensor.shape.size() <= 2 && !taken_rows.empty() && !taken_cols.empty());
  RI_CHECK(taken_rows.back().first + taken_rows.back().count <= num_rows);
  RI_CHECK(taken_cols.back().first + taken_cols.back().count <= num_cols);
  HostTensor part = tensor;
  part.shape[0] = CountOf(taken_rows);
  if (part.shape.size() > 1) part.shape[1] = CountOf(taken_cols);
  if (part.shape == tensor.shape) return part;

  size_t row_bytes = static_cast<size_t>(num_cols) * WeightTypeBytes(tensor.type);
  std::vector<ByteRun> runs = RunsOf(taken_cols, WeightTypeBytes(tensor.type));
  if (taken_cols.front() == Share{0, num_cols}) {
    runs = RunsOf(taken_rows, row_bytes);
    row_bytes *= static_cast<size_t>(num_rows);
    taken_rows = {{0, 1}};
    if (tensor.coding == nullptr && runs.size() == 1) {
      part.stored = tensor.stored.subspan(runs[0].begin, runs[0].size);
      part.file_offset += runs[0].begin;
      return part;
    }
  }
  part.coding =
      std::make_shared<CutCoding>(tensor.coding, row_bytes, std::move(taken_rows), std::move(runs));
  return part;
}

HostTensor ZerosLike(const HostTensor& tensor) {
  HostTensor zeros = tensor;
  zeros.stored = {};
  zeros.coding = std::make_shared<Zeros>();
  return zeros;
}

}  // namespace retroinfer
