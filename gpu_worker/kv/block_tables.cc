#include "gpu_worker/kv/block_tables.h"

#include "absl/memory/memory.h"
#include "common/status/status_macros.h"

namespace retroinfer {

MemoryNeed BlockTables::MemoryOf(int32_t num_rows, int64_t max_dense_blocks,
                                 int64_t max_meta_blocks) {
  const auto rows = static_cast<size_t>(num_rows);
  MemoryNeed need;
  need[MemoryPurpose::kDenseKv] = rows * static_cast<size_t>(max_dense_blocks) * sizeof(int32_t);
  // One more, so that a table without an index is not empty.
  need[MemoryPurpose::kMetaIndex] =
      (rows * static_cast<size_t>(max_meta_blocks) + 1) * sizeof(int32_t);
  return need;
}

absl::StatusOr<std::unique_ptr<BlockTables>> BlockTables::Create(Device& device, int32_t num_rows,
                                                                 int64_t max_dense_blocks,
                                                                 int64_t max_meta_blocks) {
  auto tables =
      absl::WrapUnique(new BlockTables(device, num_rows, max_dense_blocks, max_meta_blocks));
  const MemoryNeed need = MemoryOf(num_rows, max_dense_blocks, max_meta_blocks);
  const auto allocate = [&](MemoryPurpose purpose) {
    return device.Allocate(need[purpose], purpose);
  };
  ASSIGN_OR_RETURN(tables->dense_, allocate(MemoryPurpose::kDenseKv));
  ASSIGN_OR_RETURN(tables->meta_, allocate(MemoryPurpose::kMetaIndex));
  return tables;
}

absl::Status BlockTables::Write(Stream& stream, DeviceSpan<int32_t> row,
                                std::span<const int32_t> blocks) {
  if (blocks.size() > row.size()) {
    return absl::InternalError("block table: a sequence has more blocks than its row holds");
  }
  const DeviceSpan<int32_t> places = row.first(blocks.size());
  return device_.Upload(stream, std::as_bytes(blocks),
                        {reinterpret_cast<std::byte*>(places.device_data()), places.size_bytes()});
}

absl::Status BlockTables::WriteDense(Stream& stream, int32_t row, std::span<const int32_t> blocks) {
  return Write(stream,
               dense_.as<int32_t>().subspan(static_cast<size_t>(row * max_dense_blocks_),
                                            static_cast<size_t>(max_dense_blocks_)),
               blocks);
}

absl::Status BlockTables::WriteMeta(Stream& stream, int32_t row, std::span<const int32_t> blocks,
                                    size_t first) {
  const auto all = static_cast<size_t>(max_meta_blocks_);
  if (first > all) return absl::InternalError("block table: behind the end of a row");
  const size_t begin = static_cast<size_t>(row * max_meta_blocks_) + first;
  return Write(stream, meta_.as<int32_t>().subspan(begin, all - first), blocks);
}

DeviceSpan<const int32_t> BlockTables::Dense(int32_t row) const {
  return dense_.as<int32_t>().subspan(static_cast<size_t>(row * max_dense_blocks_),
                                      static_cast<size_t>(max_dense_blocks_));
}

DeviceSpan<const int32_t> BlockTables::Meta(int32_t row) const {
  return meta_.as<int32_t>().subspan(static_cast<size_t>(row * max_meta_blocks_),
                                     static_cast<size_t>(max_meta_blocks_));
}

}  // namespace retroinfer
