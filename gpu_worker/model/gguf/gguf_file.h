// One GGUF file, mapped and checked.
//
//   OFFSET   DESCRIPTION
//   0        "GGUF", u32 version, u64 number of tensors, u64 number of keys; little-endian
//   24       keys and values (gguf_metadata.h)
//            for each tensor: u64 length and bytes of its name, u32 number of dimensions,
//            u64 for each, the one whose elements lie side by side first; u32 type; u64 offset
//            padding to general.alignment, or 32; from there tensors' offsets count
//            data: tensors one behind the other, each at the next multiple of the alignment
//
// The layout is that of versions 2 and 3 of the public specification. Nothing is believed: counts,
// lengths, types, shapes and offsets are checked against each other and against the file's size
// before any tensor can be read, and memory is taken for what was read only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/model/gguf/gguf_blocks.h"
#include "gpu_worker/model/gguf/gguf_cursor.h"
#include "gpu_worker/model/gguf/gguf_metadata.h"
#include "gpu_worker/model/mapped_file.h"

namespace retroinfer {

// A tensor as it is stored: row-major, rows of blocks without gaps.
struct GgufTensor {
  const GgufBlocks* blocks = nullptr;
  std::vector<int64_t> shape;  // the last dimension's elements lie side by side
  std::span<const std::byte> bytes;
  // Where its file has the same bytes.
  int fd = -1;
  uint64_t file_offset = 0;

  int64_t cols() const { return shape.back(); }
  int64_t rows() const {
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
    return rows;
  }
};

// Threads: immutable after Open.
// Owns:    the mapping and the descriptor that its tensors and strings point into.
class GgufFile {
 public:
  static constexpr uint64_t kMaxTensors = 65'536;
  static constexpr uint64_t kMaxNameBytes = 1024;
  static constexpr uint32_t kMaxDimensions = 4;
  static constexpr uint32_t kDefaultAlignment = 32;
  static constexpr int64_t kMaxAlignment = 1 << 20;

  // Maps `path` and checks all but the data.
  //
  // Returns: NOT_FOUND or PERMISSION_DENIED as the system says; INVALID_ARGUMENT, with file and
  //          tensor, if anything does not fit; UNIMPLEMENTED for another version, big-endian files
  //          and types that are not supported.
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  const GgufMetadata& metadata() const { return metadata_; }
  const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }

 private:
  // Of a tensor, before the data's beginning is known.
  struct Entry {
    std::string name;
    GgufTensor tensor;
    uint64_t offset = 0;
    uint64_t size = 0;
  };

  absl::StatusOr<Entry> ReadEntry(GgufCursor& cursor) const;
  absl::Status PlaceTensors(const GgufCursor& cursor, std::vector<Entry> entries);

  MappedFile file_;
  GgufMetadata metadata_;
  std::map<std::string, GgufTensor> tensors_;
};

}  // namespace retroinfer
