// Rows of the durable segment store. Each is sealed: bound by a CRC-32C to its kind, its version
// and the key it is stored under, so that a damaged row, or one under another key, is noticed.
//
// Every row (little-endian):
//
//   OFFSET    SIZE  DESCRIPTION
//   0         4     kind: RowKind
//   4         4     kRowVersion
//   8         n     body
//   8 + n     4     CRC-32C of the key, then of bytes [0, 8 + n)
//
// Bodies (times are microseconds since 1970, i64; strings and lists follow their u32 length):
//
//   manifest    name[32] parent[32] root[32] fingerprint_hash[32] salt_hash[32] u64 token_begin
//               u32 num_tokens  u64 image_bytes  i64 created  u64 payload_id  u32 chunk_bytes
//               u32 CRC-32C of the index row; of generated KV, which is a kind of its own, then
//               made_by[32] sources[32] text[32]
//   index       list of i32 token ids, list of u32 CRC-32C of the chunks of the payload
//   parts       u64 payload_id  u32 part_bytes, list of u32 CRC-32C of the parts of the payload;
//               in the index table, under the key name[32] 'p'
//   context     string name, salt_hash[32] root[32], list of name[32], list of i32 sink token ids,
//               u64 num_tokens  u32 pinned  i64 created  i64 expires (INT64_MAX: never)
//   usage       i64 last use
//   pending     u64 number of chunks of a payload that no manifest row has, or has not yet
//   quarantine  name[32] u64 payload_id  u64 number of chunks  i64 when  string reason
//
// Keys: manifest, index, usage: name[32]. context: salt_hash[32], then the name. pending,
// quarantine: payload_id, 8 bytes big-endian. Chunks of payload are stored as they are under
// payload_id, then the chunk's index in 4 bytes big-endian; their checksums are in the index row.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore {

inline constexpr uint32_t kRowVersion = 1;

enum class RowKind : uint32_t {
  kManifest = 0x314d5352,    // "RSM1"
  kGenerated = 0x31475352,   // "RSG1": a manifest row of generated KV
  kIndex = 0x31495352,       // "RSI1"
  kParts = 0x31445352,       // "RSD1"
  kContext = 0x31435352,     // "RSC1"
  kUsage = 0x31555352,       // "RSU1"
  kPending = 0x31505352,     // "RSP1"
  kQuarantine = 0x31515352,  // "RSQ1"
};

struct ManifestRow {
  SegmentRecord record;  // last_use is not part of the row: it is `created` when decoded
  uint64_t payload_id = 0;
  uint32_t chunk_bytes = 0;
  uint32_t index_crc = 0;  // Crc32c of the index row as stored

  uint64_t num_chunks() const { return (record.image_bytes + chunk_bytes - 1) / chunk_bytes; }
};

struct IndexRow {
  std::vector<int32_t> token_ids;
  std::vector<uint32_t> chunk_crcs;
};

// Checksums of smaller pieces than chunks, for reads of some of them. A segment may have none.
struct PartsRow {
  uint64_t payload_id = 0;
  uint32_t part_bytes = 0;
  std::vector<uint32_t> part_crcs;
};

struct QuarantineRow {
  SegmentName name;
  uint64_t payload_id = 0;
  uint64_t num_chunks = 0;
  absl::Time when;
  std::string reason;
};

std::string ContextKey(const Hash256& salt_hash, std::string_view context_name);
std::string PayloadIdKey(uint64_t payload_id);
std::string ChunkKey(uint64_t payload_id, uint32_t chunk_index);
std::string PartsKey(const SegmentName& name);

// Return the number in a key of PayloadIdKey(), or DATA_LOSS.
absl::StatusOr<uint64_t> ParsePayloadIdKey(std::string_view key);

std::string EncodeManifest(const ManifestRow& row);
std::string EncodeIndex(const SegmentName& name, const IndexRow& row);
std::string EncodeParts(const SegmentName& name, const PartsRow& row);
std::string EncodeContext(const ContextRecord& context);
std::string EncodeUsage(const SegmentName& name, absl::Time last_use);
std::string EncodePending(uint64_t payload_id, uint64_t num_chunks);
std::string EncodeQuarantine(const QuarantineRow& row);

// Return DATA_LOSS with what is wrong unless `value` is an intact row of its kind for `key`.
absl::StatusOr<ManifestRow> DecodeManifest(std::string_view key, std::string_view value);
absl::StatusOr<IndexRow> DecodeIndex(std::string_view key, std::string_view value);
absl::StatusOr<PartsRow> DecodeParts(std::string_view key, std::string_view value);
absl::StatusOr<ContextRecord> DecodeContext(std::string_view key, std::string_view value);
absl::StatusOr<absl::Time> DecodeUsage(std::string_view key, std::string_view value);
absl::StatusOr<uint64_t> DecodePending(std::string_view key, std::string_view value);
absl::StatusOr<QuarantineRow> DecodeQuarantine(std::string_view key, std::string_view value);

}  // namespace retroinfer::kvstore
