// A context as one file: what `retroinfer cache export` writes and `import` reads.
//
//   OFFSET  SIZE  DESCRIPTION (little-endian)
//   0       8     magic "RTROCTX\n"
//   8       4     kContextFileVersion
//   12      4     bytes of the header, this and the checksum included; at most 64 KiB
//   16      32    hash of the model's fingerprint
//   48      20    u32 version of the segments, layers, KV heads, head_dim, KvFormatId
//   68      8     u64 tokens of the text that was saved
//   76      8     u64 number of segments
//   84      8     i64 when it was saved, microseconds since 1970
//   92      16    i32 sink token ids [4]
//   108     4+n   u32 length of the name, then the name
//   ..      0, 8  where segments have a tail (version 3): u32 window layers, u32 their window
//   ..      4     CRC-32C of everything before
//   then for each segment, in the order of its tokens:
//           20    u64 position of its first token, u32 number of tokens t, u64 bytes of its image b
//           4t    i32 token ids
//           4     CRC-32C of those 20 + 4t bytes
//           b     image (common/kv/segment_layout.h)
//           4     CRC-32C of the image
//   then    32    SHA-256 of everything before (common::Sha256, domain "retroinfer context file")
//
// Neither the salt nor its hash is in it, so names of segments are not either: they follow from the
// reader's own root and the tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/hash/sha256.h"
#include "common/kv/kv_geometry.h"

namespace retroinfer::kvstore {

inline constexpr uint32_t kContextFileVersion = 1;
inline constexpr size_t kContextHeaderBytesMax = 64 << 10;
inline constexpr char kBadFileReason[] = "BAD_FILE";
inline constexpr char kWrongFormatReason[] = "WRONG_FORMAT";

struct ContextFileHeader {
  common::Hash256 fingerprint_hash;
  uint32_t segment_version = 0;  // SegmentVersionOf(geometry), or one that nobody here can read
  KvGeometry geometry;
  uint64_t num_tokens = 0;
  uint64_t num_segments = 0;
  absl::Time created;
  std::vector<int32_t> sink_token_ids;  // kSinkTokens of them
  std::string context_name;
};

// How large a file with this header can be, and must be. Upper and lower bounds: pages that the
// clusters of a segment do not fill and the lengths of segments decide between them.
struct ContextFileBytes {
  uint64_t least = 0;
  uint64_t most = 0;
};
ContextFileBytes SizeOf(const ContextFileHeader& header);

// Writes a file front to back.
//
// Threads: one at a time.
class ContextFileWriter {
 public:
  // Gets the bytes in order; an error ends the file and is returned.
  using Sink = std::function<absl::Status(std::string_view)>;

  explicit ContextFileWriter(Sink sink)
      : sink_(std::move(sink)), digest_("retroinfer context file") {}

  absl::Status Begin(const ContextFileHeader& header);
  absl::Status AddSegment(uint64_t token_begin, std::span<const int32_t> token_ids,
                          std::span<const std::byte> image);
  // REQUIRES: header.num_segments segments were added.
  absl::Status Finish();

 private:
  absl::Status Write(std::string_view bytes);

  const Sink sink_;
  common::Sha256 digest_;
};

// Parses the header at the beginning of `bytes`; nothing if there are not enough of them yet.
//
// Returns: INVALID_ARGUMENT (reason BAD_FILE) if this is the beginning of no context file, of a
//          damaged one, or of one with numbers that no context has; FAILED_PRECONDITION
//          (WRONG_FORMAT) if it is one of another version.
absl::StatusOr<std::optional<ContextFileHeader>> ParseContextFileHeader(std::string_view bytes);

// Reads a file that may be anything.
//
// Threads: const methods on any thread.
class ContextFileReader {
 public:
  struct Segment {
    uint64_t token_begin = 0;
    uint32_t num_tokens = 0;
    uint64_t image_bytes = 0;
    uint64_t offset = 0;  // of its token ids
  };

  // Copies bytes of a file from `offset` on, all that are asked for.
  using Source = std::function<absl::Status(uint64_t offset, std::span<char> bytes)>;

  // Reads all of the file once: the digest must be right, the segments must follow each other from
  // the sink on, and none may be larger than its geometry allows.
  //
  // REQUIRES: `fd` stays open and the file unchanged.
  // Returns:  as ParseContextFileHeader(); INTERNAL or so if it cannot be read.
  static absl::StatusOr<ContextFileReader> Open(int fd);
  // The same for `size` bytes that are not in a file.
  static absl::StatusOr<ContextFileReader> Open(Source source, uint64_t size);

  const ContextFileHeader& header() const { return header_; }
  const std::vector<Segment>& segments() const { return segments_; }

  // Return INVALID_ARGUMENT (BAD_FILE) if a checksum is wrong, or a token id is negative.
  absl::StatusOr<std::vector<int32_t>> ReadTokens(size_t index) const;
  absl::StatusOr<std::vector<std::byte>> ReadImage(size_t index) const;

 private:
  absl::Status CheckDigest() const;
  absl::Status ReadHeader();
  absl::Status FindSegments();
  absl::Status ReadAt(uint64_t offset, void* to, size_t size) const;

  Source source_;
  uint64_t size_ = 0;  // of the file
  ContextFileHeader header_;
  uint64_t header_bytes_ = 0;
  std::vector<Segment> segments_;
};

}  // namespace retroinfer::kvstore
