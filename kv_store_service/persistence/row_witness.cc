#include "kv_store_service/persistence/row_witness.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files/regular_file.h"
#include "common/hash/crc32c.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

struct WitnessFile {
  char magic[8];
  uint64_t segments;
  uint64_t contexts;
  uint32_t crc;
  uint32_t unused;  // not in the file
};
constexpr size_t kCheckedBytes = offsetof(WitnessFile, crc);
constexpr size_t kFileBytes = kCheckedBytes + sizeof(uint32_t);
static_assert(kCheckedBytes == 24 && kFileBytes == 28);
constexpr char kMagic[8] = {'R', 'T', 'R', 'I', 'C', 'N', 'T', '1'};

uint32_t CrcOf(const WitnessFile& bytes) {
  return common::Crc32c(std::as_bytes(std::span(&bytes, 1)).first(kCheckedBytes));
}

}  // namespace

absl::StatusOr<std::optional<RowCounts>> ParseRowCounts(std::span<const std::byte> bytes) {
  if (bytes.empty()) return std::nullopt;
  WitnessFile file{};
  if (bytes.size() == kFileBytes) std::memcpy(&file, bytes.data(), kFileBytes);
  if (bytes.size() != kFileBytes || std::memcmp(file.magic, kMagic, sizeof(kMagic)) != 0 ||
      file.crc != CrcOf(file)) {
    return absl::DataLossError("the file of the numbers of rows is damaged");
  }
  return RowCounts{file.segments, file.contexts};
}

absl::StatusOr<RowWitness> RowWitness::Open(const std::string& path,
                                            const SegmentCatalog* catalog) {
  ASSIGN_OR_RETURN(common::UniqueFd file, common::OpenRegularFile(path, O_RDWR | O_CREAT));
  return RowWitness(path, std::move(file), catalog);
}

absl::StatusOr<std::optional<RowCounts>> RowWitness::Read() const {
  std::byte bytes[kFileBytes + 1];
  const ssize_t size = ::pread(file_.get(), bytes, sizeof(bytes), 0);
  if (size < 0) return common::ErrnoStatus(errno, absl::StrCat("reading ", path_));
  return ParseRowCounts({bytes, static_cast<size_t>(size)});
}

uint64_t RowWitness::CountLost(const RowCounts& damaged) const {
  const auto expected = Read();
  if (!expected.ok()) return 1;
  if (!expected->has_value()) return 0;
  const SegmentCatalog::Totals found = catalog_->totals();
  const auto lost = [](uint64_t expected, uint64_t found) {
    return expected - std::min(expected, found);
  };
  return lost((*expected)->segments, found.segments + damaged.segments) +
         lost((*expected)->contexts, found.contexts + damaged.contexts);
}

void RowWitness::Raise() {
  const SegmentCatalog::Totals totals = catalog_->totals();
  Write({totals.segments, totals.contexts}, /*sync=*/false).IgnoreError();
}

absl::Status RowWitness::Lower(const RowCounts& removed) {
  const SegmentCatalog::Totals totals = catalog_->totals();
  return Write({totals.segments - std::min(totals.segments, removed.segments),
                totals.contexts - std::min(totals.contexts, removed.contexts)},
               /*sync=*/true);
}

absl::Status RowWitness::Write(const RowCounts& counts, bool sync) {
  WitnessFile bytes{};
  std::memcpy(bytes.magic, kMagic, sizeof(kMagic));
  bytes.segments = counts.segments;
  bytes.contexts = counts.contexts;
  bytes.crc = CrcOf(bytes);
  if (::pwrite(file_.get(), &bytes, kFileBytes, 0) != static_cast<ssize_t>(kFileBytes) ||
      ::ftruncate(file_.get(), kFileBytes) != 0 || (sync && ::fdatasync(file_.get()) != 0)) {
    return common::ErrnoStatus(errno != 0 ? errno : EIO, absl::StrCat("writing ", path_));
  }
  return absl::OkStatus();
}

}  // namespace retroinfer::kvstore
