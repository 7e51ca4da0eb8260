#include "kv_store_service/persistence/placed_parts.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/files/regular_file.h"
#include "common/hash/crc32c.h"
#include "common/status/status_macros.h"
#include "kv_store_service/persistence/segment_rows.h"

namespace retroinfer::kvstore {
namespace {

// Of a direct read: places and sizes are multiples of it.
constexpr uint64_t kSectorBytes = 4096;

uint64_t RoundDown(uint64_t value) { return value / kSectorBytes * kSectorBytes; }
uint64_t RoundUp(uint64_t value) { return RoundDown(value + kSectorBytes - 1); }

// Reads up to `bytes`, fewer at the end of the file. Returns how many; negative after an error.
ssize_t ReadAt(int file, std::byte* to, size_t bytes, uint64_t offset) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t count = pread(file, to + done, bytes - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return count;
    done += static_cast<size_t>(count);
    // A direct read ends with the file, in the middle of a sector.
    if (count == 0 || done % kSectorBytes != 0) break;
  }
  return static_cast<ssize_t>(done);
}

}  // namespace

PartsRow PartsOf(uint64_t payload_id, std::span<const std::byte> image) {
  PartsRow parts{.payload_id = payload_id, .part_bytes = kPartBytes, .part_crcs = {}};
  parts.part_crcs.reserve((image.size() + kPartBytes - 1) / kPartBytes);
  for (size_t begin = 0; begin < image.size(); begin += kPartBytes) {
    const size_t bytes = std::min<size_t>(kPartBytes, image.size() - begin);
    parts.part_crcs.push_back(common::Crc32c(image.subspan(begin, bytes)));
  }
  return parts;
}

absl::StatusOr<std::unique_ptr<ImageParts>> PlacedParts::Open(const Database& database,
                                                              const ManifestRow& row,
                                                              AfterError after_error) {
  auto index = LoadIndexRow(database.tables, row);
  if (!index.ok()) return after_error(index.status());
  auto parts = LoadPartsRow(database.tables, row);
  if (!parts.has_value()) return nullptr;
  auto places = FindPlaces(database.tables, row.payload_id, row.num_chunks());
  if (!places.has_value()) return nullptr;
  auto opened =
      absl::WrapUnique(new PlacedParts(database, row, *std::move(index), std::move(after_error)));
  opened->parts_ = *std::move(parts);
  opened->places_ = *std::move(places);
  if (!opened->OpenFiles()) return nullptr;
  return opened;
}

bool PlacedParts::OpenFiles() {
  const bool direct = database_.tables->db().GetDBOptions().use_direct_reads;
  for (const ChunkPlace& place : places_) {
    if (files_.contains(place.file_number)) continue;
    const std::string path = absl::StrFormat("%s/%06d.blob", database_.path, place.file_number);
    auto file = common::OpenRegularFile(path, O_RDONLY | (direct ? O_DIRECT : 0));
    if (!file.ok()) return false;
    files_[place.file_number] = *std::move(file);
  }
  return true;
}

std::vector<PartRun> PlacedParts::Cut(std::span<const PartRun> runs) const {
  const uint32_t per_chunk = row_.chunk_bytes / parts_.part_bytes;
  const uint32_t per_piece = std::max(1u, kPieceBytes / parts_.part_bytes);
  std::vector<PartRun> pieces;
  for (const PartRun& run : runs) {
    for (uint32_t at = run.first; at < run.first + run.count;) {
      const uint32_t end =
          std::min({run.first + run.count, (at / per_chunk + 1) * per_chunk, at + per_piece});
      pieces.push_back({at, end - at});
      at = end;
    }
  }
  return pieces;
}

absl::Status PlacedParts::Read(std::span<const PartRun> runs, std::span<std::byte> image) {
  const std::vector<PartRun> pieces = Cut(runs);
  const absl::Status status = database_.reads->Run(
      static_cast<uint32_t>(pieces.size()), [&](uint32_t index, std::span<std::byte> buffer) {
        return ReadPiece(pieces[index], buffer, image);
      });
  return status.ok() ? status : after_error_(status);
}

std::span<std::byte> PlacedParts::Bytes(const PartRun& run, std::span<std::byte> image) const {
  const uint64_t begin = uint64_t{run.first} * parts_.part_bytes;
  return image.subspan(
      begin, std::min<uint64_t>(uint64_t{run.count} * parts_.part_bytes, image.size() - begin));
}

bool PlacedParts::IsRight(uint32_t part, std::span<const std::byte> image) const {
  const uint64_t begin = uint64_t{part} * parts_.part_bytes;
  const uint64_t bytes = std::min<uint64_t>(parts_.part_bytes, image.size() - begin);
  return common::Crc32c(image.subspan(begin, bytes)) == parts_.part_crcs[part];
}

absl::Status PlacedParts::ReadPiece(const PartRun& run, std::span<std::byte> buffer,
                                    std::span<std::byte> image) {
  const uint64_t begin = uint64_t{run.first} * parts_.part_bytes;
  const auto chunk = static_cast<uint32_t>(begin / row_.chunk_bytes);
  const uint64_t chunk_begin = uint64_t{chunk} * row_.chunk_bytes;
  const std::span<std::byte> bytes = Bytes(run, image);
  bool is_right = ReadBytes(places_[chunk], begin - chunk_begin, buffer, bytes);
  for (uint32_t i = 0; is_right && i < run.count; ++i) is_right = IsRight(run.first + i, image);
  if (is_right) return absl::OkStatus();
  std::vector<std::byte> whole(std::min<uint64_t>(row_.chunk_bytes, image.size() - chunk_begin));
  RETURN_IF_ERROR(database_.payloads->ReadChunk(row_.payload_id, chunk, index_.chunk_crcs[chunk],
                                                /*check_keys=*/true, whole));
  std::memcpy(bytes.data(), whole.data() + (begin - chunk_begin), bytes.size());
  for (uint32_t i = 0; i < run.count; ++i) {
    if (IsRight(run.first + i, image)) continue;
    return absl::DataLossError(absl::StrCat("the checksum of part ", run.first + i, " is wrong"));
  }
  return absl::OkStatus();
}

bool PlacedParts::ReadBytes(const ChunkPlace& place, uint64_t begin, std::span<std::byte> buffer,
                            std::span<std::byte> to) const {
  if (begin + to.size() > place.num_bytes) return false;
  const uint64_t first = place.offset + begin;
  const uint64_t from = RoundDown(first);
  const uint64_t bytes = RoundUp(first + to.size()) - from;
  if (bytes > buffer.size()) return false;
  const ssize_t count = ReadAt(files_.at(place.file_number).get(), buffer.data(), bytes, from);
  if (count < 0 || static_cast<uint64_t>(count) < first - from + to.size()) return false;
  std::memcpy(to.data(), buffer.data() + (first - from), to.size());
  return true;
}

}  // namespace retroinfer::kvstore
