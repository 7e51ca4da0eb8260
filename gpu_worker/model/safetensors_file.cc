#include "gpu_worker/model/safetensors_file.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files/lfs_pointer.h"
#include "common/json/json_reader.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr size_t kPrefixBytes = 8;
constexpr int64_t kMaxOffset = int64_t{1} << 62;
// A tensor's entry is 9 keys and arrays and at most kMaxDimensions + 3 scalars.
constexpr common::JsonLimits kHeaderLimits = {.bytes_max = SafetensorsFile::kMaxHeaderBytes,
                                              .values_max = 20 * SafetensorsFile::kMaxTensors,
                                              .depth_max = 4};

absl::StatusOr<WeightType> ReadType(const common::JsonReader& entry) {
  ASSIGN_OR_RETURN(const std::string name, entry.String("dtype"));
  if (name == "F32") return WeightType::kF32;
  if (name == "F16") return WeightType::kF16;
  if (name == "BF16") return WeightType::kBf16;
  if (name == "F8_E4M3") return WeightType::kF8E4M3;
  // Packed codes and what belongs to them; anywhere else CheckTensors refuses it.
  if (name == "I32") return WeightType::kI32;
  if (name == "I64") return WeightType::kI64;
  if (name == "U8") return WeightType::kU8;
  return absl::UnimplementedError(
      absl::StrCat(entry.place(), ": element type ", name.substr(0, 40),
                   " is not supported; F32, F16, BF16 and F8_E4M3 are"));
}

// Product of the shape and the element size, or INVALID_ARGUMENT if it overflows.
absl::StatusOr<int64_t> BytesOf(const common::JsonReader& entry, const std::vector<int64_t>& shape,
                                WeightType type) {
  auto bytes = static_cast<int64_t>(WeightTypeBytes(type));
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return entry.Error("shape",
                         absl::StrCat("[", absl::StrJoin(shape, ", "), "] overflows 64 bits"));
    }
  }
  return bytes;
}

// Reads the entry of one tensor. `data` is all that follows the header.
absl::StatusOr<HostTensor> ReadEntry(const common::JsonReader& entry,
                                     std::span<const std::byte> data) {
  HostTensor tensor;
  ASSIGN_OR_RETURN(tensor.type, ReadType(entry));
  for (const char* key : {"shape", "data_offsets"}) {
    if (entry.Has(key) && !entry.json().Find(key)->IsArray()) {
      return entry.Error(key, "must be an array");
    }
  }
  ASSIGN_OR_RETURN(tensor.shape,
                   entry.IntList("shape", 0, kMaxOffset, SafetensorsFile::kMaxDimensions));
  ASSIGN_OR_RETURN(const auto offsets, entry.IntList("data_offsets", 0, kMaxOffset, 2));
  if (offsets.size() != 2) return entry.Error("data_offsets", "needs two numbers, begin and end");
  const int64_t begin = offsets[0];
  const int64_t end = offsets[1];
  ASSIGN_OR_RETURN(const int64_t bytes, BytesOf(entry, tensor.shape, tensor.type));
  if (begin > end || static_cast<uint64_t>(end) > data.size()) {
    return entry.Error("data_offsets",
                       absl::StrCat("[", begin, ", ", end, "] is not inside the ", data.size(),
                                    " bytes of data that the file has; is it complete?"));
  }
  if (end - begin != bytes) {
    return entry.Error("data_offsets",
                       absl::StrCat("span ", end - begin, " bytes, but the shape [",
                                    absl::StrJoin(tensor.shape, ", "), "] needs ", bytes));
  }
  tensor.stored = data.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
  return tensor;
}

// Checks that the tensors cover the data exactly once.
absl::Status CheckCoverage(const std::string& path,
                           const std::map<std::string, HostTensor>& tensors,
                           std::span<const std::byte> data) {
  struct Extent {
    size_t begin;
    size_t size;
    const std::string* name;
  };
  std::vector<Extent> extents;
  for (const auto& [name, tensor] : tensors) {
    extents.push_back(
        {static_cast<size_t>(tensor.stored.data() - data.data()), tensor.stored.size(), &name});
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.size < b.size;
  });
  size_t covered = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != covered) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor \"", *extent.name, "\" begins at ", extent.begin,
                       extent.begin < covered ? " and overlaps the tensor that ends at "
                                              : " and leaves a gap after the tensor that ends at ",
                       covered));
    }
    covered += extent.size;
  }
  if (covered != data.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": has ", data.size(), " bytes of data, but its tensors cover ", covered));
  }
  return absl::OkStatus();
}

struct Parts {
  std::span<const std::byte> header;
  std::span<const std::byte> data;
};

absl::StatusOr<Parts> Split(const std::string& path, std::span<const std::byte> bytes) {
  if (bytes.size() < kPrefixBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": has ", bytes.size(), " bytes, too few for a safetensors file; is it complete?"));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > SafetensorsFile::kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": says that its header has ", header_bytes, " bytes; at most ",
                     SafetensorsFile::kMaxHeaderBytes, " are accepted"));
  }
  if (header_bytes > bytes.size() - kPrefixBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": says that its header has ",
                                                   header_bytes, " bytes, but the file has ",
                                                   bytes.size(), "; is it complete?"));
  }
  return Parts{bytes.subspan(kPrefixBytes, header_bytes),
               bytes.subspan(kPrefixBytes + header_bytes)};
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile result;
  ASSIGN_OR_RETURN(result.file_, MappedFile::Open(path));
  const std::span<const std::byte> bytes = result.file_.bytes();
  RETURN_IF_ERROR(
      common::RefuseLfsPointer({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path));
  ASSIGN_OR_RETURN(const Parts parts, Split(path, bytes));
  ASSIGN_OR_RETURN(const common::JsonReader header,
                   common::JsonReader::ParseObject(
                       {reinterpret_cast<const char*>(parts.header.data()), parts.header.size()},
                       path, kHeaderLimits));
  for (const common::JsonMember& member : header.json().Members()) {
    const std::string name(member.key);
    if (name == "__metadata__") continue;
    if (name.empty() || name.size() > kMaxNameBytes) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": a tensor's name has ", name.size(),
                                                     " bytes; needs 1 to ", kMaxNameBytes));
    }
    if (result.tensors_.size() == kMaxTensors) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": has more than ", kMaxTensors, " tensors"));
    }
    ASSIGN_OR_RETURN(const common::JsonReader entry, header.Object(member));
    ASSIGN_OR_RETURN(HostTensor tensor, ReadEntry(entry, parts.data));
    tensor.fd = result.file_.fd();
    tensor.file_offset = static_cast<uint64_t>(tensor.stored.data() - result.file_.bytes().data());
    result.tensors_.emplace(name, std::move(tensor));
  }
  RETURN_IF_ERROR(CheckCoverage(path, result.tensors_, parts.data));
  return result;
}

}  // namespace retroinfer
