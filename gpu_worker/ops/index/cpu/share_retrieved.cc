#include "gpu_worker/ops/index/cpu/share_retrieved.h"

#include <algorithm>
#include <bit>
#include <span>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/index/share_retrieved_check.h"

namespace retroinfer::cpu {
namespace {

// A bit for each cluster.
class ClusterSet {
 public:
  explicit ClusterSet(std::span<uint64_t> words) : words_(words) { std::ranges::fill(words_, 0); }

  void Add(int32_t cluster) { words_[WordOf(cluster)] |= BitOf(cluster); }
  bool Has(int32_t cluster) const { return (words_[WordOf(cluster)] & BitOf(cluster)) != 0; }
  // Writes all clusters by number and returns how many there are.
  int32_t Write(int32_t* out) const {
    const int32_t* const begin = out;
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t word = words_[i]; word != 0; word &= word - 1) {
        *out++ = static_cast<int32_t>(64 * i) + std::countr_zero(word);
      }
    }
    return static_cast<int32_t>(out - begin);
  }

 private:
  static size_t WordOf(int32_t cluster) { return static_cast<size_t>(cluster) / 64; }
  static uint64_t BitOf(int32_t cluster) { return uint64_t{1} << (cluster % 64); }

  const std::span<uint64_t> words_;
};

// Of one run and KV head.
void ShareOfHead(const ShareRetrievedArgs& args, const RowRun& run, int64_t head,
                 std::span<uint64_t> words) {
  ClusterSet shared(words);
  const auto list_of = [&](int64_t row) { return row * args.num_kv_heads + head; };
  const int64_t end = int64_t{run.first_row} + run.num_rows;
  for (int64_t row = run.first_row; row < end; ++row) {
    int32_t& count = args.num_retrieved.device_data()[list_of(row)];
    const int32_t* list = args.retrieved.device_data() + list_of(row) * args.max_retrieved;
    std::for_each_n(list, count, [&](int32_t cluster) { shared.Add(cluster); });
    count = 0;
  }
  const int64_t first = list_of(run.first_row);
  args.num_retrieved.device_data()[first] =
      shared.Write(args.retrieved.device_data() + first * args.max_retrieved);
  for (int64_t row = run.first_row; row < end; ++row) {
    int32_t& count = args.num_estimated.device_data()[list_of(row)];
    int32_t* list = args.estimated.device_data() + list_of(row) * args.max_estimated;
    const auto is_shared = [&](int32_t cluster) { return shared.Has(cluster); };
    count = static_cast<int32_t>(std::remove_if(list, list + count, is_shared) - list);
  }
}

}  // namespace

absl::Status ShareRetrieved(CpuStream& stream, const ShareRetrievedArgs& args) {
  RETURN_IF_ERROR(CheckShareRetrieved(args));
  return stream.Launch([args](ThreadPool& pool) {
    const auto num_words = static_cast<size_t>((args.max_clusters + 63) / 64);
    auto* const words = reinterpret_cast<uint64_t*>(args.scratch.device_data());
    const int64_t heads = args.num_kv_heads;
    pool.ParallelFor(static_cast<int64_t>(args.runs.size()) * heads, [&](int64_t task) {
      ShareOfHead(args, args.runs.device_data()[task / heads], task % heads,
                  {words + static_cast<size_t>(task) * num_words, num_words});
    });
  });
}

}  // namespace retroinfer::cpu
