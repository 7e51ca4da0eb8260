// Reads parts of an image from RocksDB's blob files, where chunk_places.h says that they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/persistence/chunk_places.h"
#include "kv_store_service/persistence/image_parts.h"
#include "kv_store_service/persistence/payload_table.h"
#include "kv_store_service/persistence/read_pool.h"
#include "kv_store_service/persistence/segment_codec.h"
#include "kv_store_service/persistence/segment_tables.h"

namespace retroinfer::kvstore {

// Bytes of a part: a page of KV in bf16, so that nothing has to be read with one for its checksum.
// Images of earlier versions have parts of 4096.
inline constexpr uint32_t kPartBytes = 2048;

// Reads of parts at a time, of all images: a disk serves many small ones side by side.
inline constexpr uint32_t kPartReads = 32;
// What is read at once at most, and a buffer for it in whole sectors.
inline constexpr uint32_t kPieceBytes = 256u << 10;
inline constexpr size_t kPartBufferBytes = kPieceBytes + 2 * 4096;

// Returns the checksums of the parts of an image under `payload_id`.
PartsRow PartsOf(uint64_t payload_id, std::span<const std::byte> image);

// A part that is not what its checksum says is read again with its chunk through the database,
// which knows where that lies; if that fails its check, too, it is damaged.
//
// Threads: as ImageParts.
// Owns:    the open blob files.
class PlacedParts final : public ImageParts {
 public:
  struct Database {
    SegmentTables* tables = nullptr;
    PayloadTable* payloads = nullptr;
    std::string path;           // of its files
    ReadPool* reads = nullptr;  // with buffers of kPartBufferBytes at least
  };
  // Called with each error; returns what to tell the caller.
  using AfterError = std::function<absl::Status(absl::Status)>;

  // Returns null where the image can only be read as a whole: earlier versions noted neither places
  // nor checksums of parts.
  //
  // REQUIRES: what `database` names outlives the object.
  static absl::StatusOr<std::unique_ptr<ImageParts>> Open(const Database& database,
                                                          const ManifestRow& row,
                                                          AfterError after_error);

  uint32_t part_bytes() const override { return parts_.part_bytes; }
  uint64_t image_bytes() const override { return row_.record.image_bytes; }
  const std::vector<int32_t>& token_ids() const override { return index_.token_ids; }
  absl::Status Read(std::span<const PartRun> runs, std::span<std::byte> image) override;

 private:
  PlacedParts(const Database& database, ManifestRow row, IndexRow index, AfterError after_error)
      : database_(database),
        row_(std::move(row)),
        index_(std::move(index)),
        after_error_(std::move(after_error)) {}

  bool OpenFiles();
  // Cuts runs where chunks end, and into pieces of kPieceBytes.
  std::vector<PartRun> Cut(std::span<const PartRun> runs) const;
  // Reads parts of one chunk by way of the buffer.
  absl::Status ReadPiece(const PartRun& run, std::span<std::byte> buffer,
                         std::span<std::byte> image);
  // Copies bytes [begin, begin + to.size()) of a chunk to `to`. Returns whether it could.
  bool ReadBytes(const ChunkPlace& place, uint64_t begin, std::span<std::byte> buffer,
                 std::span<std::byte> to) const;
  bool IsRight(uint32_t part, std::span<const std::byte> image) const;
  std::span<std::byte> Bytes(const PartRun& run, std::span<std::byte> image) const;

  const Database database_;
  const ManifestRow row_;
  const IndexRow index_;
  const AfterError after_error_;
  PartsRow parts_;
  std::vector<ChunkPlace> places_;              // by chunk
  std::map<uint64_t, common::UniqueFd> files_;  // by number
};

}  // namespace retroinfer::kvstore
