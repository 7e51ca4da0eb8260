#include "gpu_worker/model/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files/lfs_pointer.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kOldestVersion = 2;
constexpr uint32_t kNewestVersion = 3;
constexpr char kAlignmentKey[] = "general.alignment";

absl::Status CheckVersion(const GgufCursor& cursor, uint32_t version) {
  if (version >= kOldestVersion && version <= kNewestVersion) return absl::OkStatus();
  // In a big-endian file the low bits of the version come last.
  if ((version & 0xffffu) == 0 && version != 0) {
    return absl::UnimplementedError(
        absl::StrCat(cursor.place(),
                     ": is a big-endian GGUF file, which is not supported; "
                     "little-endian ones are"));
  }
  return absl::UnimplementedError(absl::StrCat(
      cursor.place(), ": is of version ", version, " of GGUF; versions ", kOldestVersion, " and ",
      kNewestVersion, " are supported: get or make it again"));
}

absl::StatusOr<uint64_t> Alignment(const GgufMetadata& metadata) {
  ASSIGN_OR_RETURN(
      const int64_t alignment,
      metadata.IntOr(kAlignmentKey, GgufFile::kDefaultAlignment, 1, GgufFile::kMaxAlignment));
  if (!std::has_single_bit(static_cast<uint64_t>(alignment))) {
    return metadata.Error(kAlignmentKey, absl::StrCat("is ", alignment, "; needs a power of two"));
  }
  return static_cast<uint64_t>(alignment);
}

// REQUIRES: `alignment` is a power of two; `offset` is at most the size of a file.
uint64_t Aligned(uint64_t offset, uint64_t alignment) {
  return (offset + alignment - 1) & ~(alignment - 1);
}

std::string Quoted(std::string_view name) {
  return absl::StrCat("tensor \"", absl::CHexEscape(std::string(name.substr(0, 100))), "\"");
}

}  // namespace

absl::StatusOr<GgufFile::Entry> GgufFile::ReadEntry(GgufCursor& cursor) const {
  Entry entry;
  ASSIGN_OR_RETURN(const std::string_view name,
                   cursor.String(kMaxNameBytes, "the name of a tensor"));
  if (name.empty()) return cursor.Error("a tensor has no name");
  entry.name = std::string(name);
  const std::string what = Quoted(name);
  ASSIGN_OR_RETURN(const uint32_t num_dimensions, cursor.U32(what));
  if (num_dimensions == 0 || num_dimensions > kMaxDimensions) {
    return cursor.Error(
        absl::StrCat(what, " has ", num_dimensions, " dimensions; needs 1 to ", kMaxDimensions));
  }
  std::vector<int64_t>& shape = entry.tensor.shape;
  uint64_t elements = 1;
  for (uint32_t i = 0; i < num_dimensions; ++i) {
    ASSIGN_OR_RETURN(const uint64_t extent, cursor.U64(what));
    if (extent == 0 || extent > (uint64_t{1} << 62) ||
        __builtin_mul_overflow(elements, extent, &elements)) {
      return cursor.Error(absl::StrCat(what, " has a dimension of ", extent,
                                       ", which cannot be; is the file damaged?"));
    }
    shape.insert(shape.begin(), static_cast<int64_t>(extent));
  }
  ASSIGN_OR_RETURN(const uint32_t type, cursor.U32(what));
  const absl::StatusOr<const GgufBlocks*> blocks = GgufBlocksOf(type);
  if (!blocks.ok()) {
    return absl::Status(
        blocks.status().code(),
        absl::StrCat(cursor.place(), ": ", what, " ", std::string(blocks.status().message())));
  }
  entry.tensor.blocks = *blocks;
  if (static_cast<uint64_t>(shape.back()) % (*blocks)->elements != 0) {
    return cursor.Error(absl::StrCat(what, " has rows of ", shape.back(), " elements, no multiple ",
                                     "of the ", (*blocks)->elements, " in a block of type ",
                                     std::string((*blocks)->name)));
  }
  if (__builtin_mul_overflow(elements / (*blocks)->elements, uint64_t{(*blocks)->bytes},
                             &entry.size)) {
    return cursor.Error(
        absl::StrCat(what, " overflows 64 bits with shape [", absl::StrJoin(shape, ", "), "]"));
  }
  ASSIGN_OR_RETURN(entry.offset, cursor.U64(what));
  return entry;
}

// Tensors follow each other without a gap but that of the alignment, as readers of the format
// demand, so none can overlap another one.
absl::Status GgufFile::PlaceTensors(const GgufCursor& cursor, std::vector<Entry> entries) {
  ASSIGN_OR_RETURN(const uint64_t alignment, Alignment(metadata_));
  const std::span<const std::byte> bytes = file_.bytes();
  const uint64_t data_begin = Aligned(cursor.offset(), alignment);
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.offset < b.offset; });
  uint64_t next = 0;  // where the next tensor must begin, from the data's beginning
  for (Entry& entry : entries) {
    const std::string what = Quoted(entry.name);
    if (entry.offset != next) {
      return cursor.Error(absl::StrCat(what, " begins at ", entry.offset, " of the data; needs ",
                                       next, ", behind the tensor before it, at a multiple of ",
                                       alignment));
    }
    if (data_begin > bytes.size() || entry.offset > bytes.size() - data_begin ||
        entry.size > bytes.size() - data_begin - entry.offset) {
      return cursor.Error(absl::StrCat(what, " needs ", entry.size, " bytes from ",
                                       data_begin + entry.offset, " on; the file has ",
                                       bytes.size(), ": is it complete?"));
    }
    next = Aligned(entry.offset + entry.size, alignment);
    entry.tensor.fd = file_.fd();
    entry.tensor.file_offset = data_begin + entry.offset;
    entry.tensor.bytes = bytes.subspan(static_cast<size_t>(entry.tensor.file_offset),
                                       static_cast<size_t>(entry.size));
    if (!tensors_.emplace(entry.name, std::move(entry.tensor)).second) {
      return cursor.Error(absl::StrCat(what, " occurs twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  GgufFile result;
  ASSIGN_OR_RETURN(result.file_, MappedFile::Open(path));
  const std::span<const std::byte> bytes = result.file_.bytes();
  RETURN_IF_ERROR(
      common::RefuseLfsPointer({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path));
  GgufCursor cursor(bytes, path);
  ASSIGN_OR_RETURN(const uint32_t magic, cursor.U32("the four bytes that say what it is"));
  if (magic != kMagic) {
    return cursor.Error(
        absl::StrCat("is no GGUF file: begins with \"",
                     absl::CHexEscape(std::string(reinterpret_cast<const char*>(bytes.data()), 4)),
                     "\" instead of \"GGUF\""));
  }
  ASSIGN_OR_RETURN(const uint32_t version, cursor.U32("the version"));
  RETURN_IF_ERROR(CheckVersion(cursor, version));
  ASSIGN_OR_RETURN(const uint64_t num_tensors, cursor.U64("the number of tensors"));
  ASSIGN_OR_RETURN(const uint64_t num_keys, cursor.U64("the number of keys"));
  if (num_tensors > kMaxTensors) {
    return cursor.Error(absl::StrCat("says that it has ", num_tensors, " tensors; at most ",
                                     kMaxTensors, " are accepted"));
  }
  ASSIGN_OR_RETURN(result.metadata_, GgufMetadata::Read(cursor, num_keys));
  std::vector<Entry> entries;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    ASSIGN_OR_RETURN(Entry entry, result.ReadEntry(cursor));
    entries.push_back(std::move(entry));
  }
  RETURN_IF_ERROR(result.PlaceTensors(cursor, std::move(entries)));
  return result;
}

}  // namespace retroinfer
