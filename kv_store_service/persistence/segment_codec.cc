#include "kv_store_service/persistence/segment_codec.h"

#include <cstring>
#include <limits>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/hash/crc32c.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are written as they lie in memory");

constexpr size_t kHeadBytes = 8;
constexpr size_t kCrcBytes = 4;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

uint32_t RowCrc(std::string_view key, std::string_view row) {
  return common::Crc32c(Bytes(row), common::Crc32c(Bytes(key)));
}

class Writer {
 public:
  explicit Writer(RowKind kind) { Put(static_cast<uint32_t>(kind)).Put(kRowVersion); }

  template <typename T>
  Writer& Put(T value) {
    static_assert(std::is_integral_v<T>);
    row_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Writer& Put(const Hash256& hash) {
    row_.append(hash.view());
    return *this;
  }
  Writer& Put(absl::Time time) {
    return Put(time == absl::InfiniteFuture() ? kNever : absl::ToUnixMicros(time));
  }
  Writer& PutString(std::string_view text) {
    Put(static_cast<uint32_t>(text.size()));
    row_.append(text);
    return *this;
  }
  template <typename T>
  Writer& PutList(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    Put(static_cast<uint32_t>(values.size()));
    row_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    return *this;
  }

  std::string Seal(std::string_view key) {
    Put(RowCrc(key, row_));
    return std::move(row_);
  }

 private:
  std::string row_;
};

// Reads fields until one does not fit; then ok() is false and all further fields are zero.
class Reader {
 public:
  explicit Reader(std::string_view body) : rest_(body) {}

  template <typename T>
  T Get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (const char* bytes = Take(sizeof(T))) std::memcpy(&value, bytes, sizeof(T));
    return value;
  }
  absl::Time GetTime() {
    const int64_t micros = Get<int64_t>();
    return micros == kNever ? absl::InfiniteFuture() : absl::FromUnixMicros(micros);
  }
  std::string GetString() {
    const size_t size = Get<uint32_t>();
    const char* bytes = Take(size);
    return bytes == nullptr ? std::string() : std::string(bytes, size);
  }
  template <typename T>
  std::vector<T> GetList() {
    const size_t count = Get<uint32_t>();
    std::vector<T> values;
    if (const char* bytes = Take(count * sizeof(T)); bytes != nullptr && count > 0) {
      values.resize(count);
      std::memcpy(values.data(), bytes, count * sizeof(T));
    }
    return values;
  }

  // Everything fitted and nothing is left.
  bool Complete() const { return ok_ && rest_.empty(); }

 private:
  const char* Take(size_t size) {
    if (!ok_ || size > rest_.size()) {
      ok_ = false;
      return nullptr;
    }
    const char* bytes = rest_.data();
    rest_.remove_prefix(size);
    return bytes;
  }

  std::string_view rest_;
  bool ok_ = true;
};

// Returns the body of a row that is intact, of this kind and of this version.
absl::StatusOr<std::string_view> Unseal(RowKind kind, std::string_view key,
                                        std::string_view value) {
  if (value.size() < kHeadBytes + kCrcBytes) {
    return absl::DataLossError(absl::StrCat("a row of ", value.size(), " bytes is too short"));
  }
  const std::string_view row = value.substr(0, value.size() - kCrcBytes);
  uint32_t crc, stored_kind, version;
  std::memcpy(&crc, value.data() + row.size(), sizeof(crc));
  if (crc != RowCrc(key, row)) return absl::DataLossError("the checksum of a row is wrong");
  std::memcpy(&stored_kind, row.data(), sizeof(stored_kind));
  std::memcpy(&version, row.data() + 4, sizeof(version));
  if (stored_kind != static_cast<uint32_t>(kind) || version != kRowVersion) {
    return absl::DataLossError("a row of another kind or version");
  }
  return row.substr(kHeadBytes);
}

// Whether a row says that it is of this kind; Unseal() tells whether that is true.
bool HasKind(RowKind kind, std::string_view value) {
  uint32_t stored_kind = 0;
  if (value.size() < sizeof(stored_kind)) return false;
  std::memcpy(&stored_kind, value.data(), sizeof(stored_kind));
  return stored_kind == static_cast<uint32_t>(kind);
}

absl::Status Malformed() { return absl::DataLossError("a row does not have its fields"); }

std::string BigEndian(uint64_t value, size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(value >> (8 * (size - 1 - i)));
  return bytes;
}

}  // namespace

std::string ContextKey(const Hash256& salt_hash, std::string_view context_name) {
  std::string key(salt_hash.view());
  key.append(context_name);
  return key;
}

std::string PayloadIdKey(uint64_t payload_id) { return BigEndian(payload_id, 8); }

std::string ChunkKey(uint64_t payload_id, uint32_t chunk_index) {
  return BigEndian(payload_id, 8) + BigEndian(chunk_index, 4);
}

std::string PartsKey(const SegmentName& name) { return std::string(name.view()) + 'p'; }

absl::StatusOr<uint64_t> ParsePayloadIdKey(std::string_view key) {
  if (key.size() != 8) return absl::DataLossError("a payload id does not have 8 bytes");
  uint64_t id = 0;
  for (char c : key) id = id << 8 | static_cast<uint8_t>(c);
  return id;
}

std::string EncodeManifest(const ManifestRow& row) {
  const SegmentRecord& record = row.record;
  Writer writer(record.provenance.has_value() ? RowKind::kGenerated : RowKind::kManifest);
  writer.Put(record.name)
      .Put(record.parent)
      .Put(record.root)
      .Put(record.fingerprint_hash)
      .Put(record.salt_hash)
      .Put(record.token_begin)
      .Put(record.num_tokens)
      .Put(record.image_bytes)
      .Put(record.created)
      .Put(row.payload_id)
      .Put(row.chunk_bytes)
      .Put(row.index_crc);
  if (record.provenance.has_value()) {
    writer.Put(record.provenance->made_by)
        .Put(record.provenance->sources)
        .Put(record.provenance->text);
  }
  return writer.Seal(record.name.view());
}

absl::StatusOr<ManifestRow> DecodeManifest(std::string_view key, std::string_view value) {
  const bool is_generated = HasKind(RowKind::kGenerated, value);
  ASSIGN_OR_RETURN(const std::string_view body,
                   Unseal(is_generated ? RowKind::kGenerated : RowKind::kManifest, key, value));
  Reader reader(body);
  ManifestRow row;
  SegmentRecord& record = row.record;
  record.name = reader.Get<Hash256>();
  record.parent = reader.Get<Hash256>();
  record.root = reader.Get<Hash256>();
  record.fingerprint_hash = reader.Get<Hash256>();
  record.salt_hash = reader.Get<Hash256>();
  record.token_begin = reader.Get<uint64_t>();
  record.num_tokens = reader.Get<uint32_t>();
  record.image_bytes = reader.Get<uint64_t>();
  record.created = reader.GetTime();
  record.last_use = record.created;
  row.payload_id = reader.Get<uint64_t>();
  row.chunk_bytes = reader.Get<uint32_t>();
  row.index_crc = reader.Get<uint32_t>();
  if (is_generated) {
    common::Provenance& provenance = record.provenance.emplace();
    provenance.made_by = reader.Get<Hash256>();
    provenance.sources = reader.Get<Hash256>();
    provenance.text = reader.Get<Hash256>();
  }
  if (!reader.Complete() || record.name.view() != key || record.image_bytes == 0 ||
      row.chunk_bytes == 0 || row.num_chunks() > std::numeric_limits<uint32_t>::max()) {
    return Malformed();
  }
  return row;
}

std::string EncodeIndex(const SegmentName& name, const IndexRow& row) {
  return Writer(RowKind::kIndex).PutList(row.token_ids).PutList(row.chunk_crcs).Seal(name.view());
}

absl::StatusOr<IndexRow> DecodeIndex(std::string_view key, std::string_view value) {
  ASSIGN_OR_RETURN(const std::string_view body, Unseal(RowKind::kIndex, key, value));
  Reader reader(body);
  IndexRow row;
  row.token_ids = reader.GetList<int32_t>();
  row.chunk_crcs = reader.GetList<uint32_t>();
  if (!reader.Complete()) return Malformed();
  return row;
}

std::string EncodeParts(const SegmentName& name, const PartsRow& row) {
  return Writer(RowKind::kParts)
      .Put(row.payload_id)
      .Put(row.part_bytes)
      .PutList(row.part_crcs)
      .Seal(PartsKey(name));
}

absl::StatusOr<PartsRow> DecodeParts(std::string_view key, std::string_view value) {
  ASSIGN_OR_RETURN(const std::string_view body, Unseal(RowKind::kParts, key, value));
  Reader reader(body);
  PartsRow row;
  row.payload_id = reader.Get<uint64_t>();
  row.part_bytes = reader.Get<uint32_t>();
  row.part_crcs = reader.GetList<uint32_t>();
  if (!reader.Complete() || row.part_bytes == 0) return Malformed();
  return row;
}

std::string EncodeContext(const ContextRecord& context) {
  return Writer(RowKind::kContext)
      .PutString(context.context_name)
      .Put(context.salt_hash)
      .Put(context.root)
      .PutList(context.segments)
      .PutList(context.sink_token_ids)
      .Put(context.num_tokens)
      .Put(uint32_t{context.pinned})
      .Put(context.created)
      .Put(context.expires)
      .Seal(ContextKey(context.salt_hash, context.context_name));
}

absl::StatusOr<ContextRecord> DecodeContext(std::string_view key, std::string_view value) {
  ASSIGN_OR_RETURN(const std::string_view body, Unseal(RowKind::kContext, key, value));
  Reader reader(body);
  ContextRecord context;
  context.context_name = reader.GetString();
  context.salt_hash = reader.Get<Hash256>();
  context.root = reader.Get<Hash256>();
  context.segments = reader.GetList<SegmentName>();
  context.sink_token_ids = reader.GetList<int32_t>();
  context.num_tokens = reader.Get<uint64_t>();
  context.pinned = reader.Get<uint32_t>() != 0;
  context.created = reader.GetTime();
  context.expires = reader.GetTime();
  if (!reader.Complete() || ContextKey(context.salt_hash, context.context_name) != key) {
    return Malformed();
  }
  return context;
}

std::string EncodeUsage(const SegmentName& name, absl::Time last_use) {
  return Writer(RowKind::kUsage).Put(last_use).Seal(name.view());
}

absl::StatusOr<absl::Time> DecodeUsage(std::string_view key, std::string_view value) {
  ASSIGN_OR_RETURN(const std::string_view body, Unseal(RowKind::kUsage, key, value));
  Reader reader(body);
  const absl::Time last_use = reader.GetTime();
  if (!reader.Complete()) return Malformed();
  return last_use;
}

std::string EncodePending(uint64_t payload_id, uint64_t num_chunks) {
  return Writer(RowKind::kPending).Put(num_chunks).Seal(PayloadIdKey(payload_id));
}

absl::StatusOr<uint64_t> DecodePending(std::string_view key, std::string_view value) {
  ASSIGN_OR_RETURN(const std::string_view body, Unseal(RowKind::kPending, key, value));
  Reader reader(body);
  const uint64_t num_chunks = reader.Get<uint64_t>();
  if (!reader.Complete()) return Malformed();
  return num_chunks;
}

std::string EncodeQuarantine(const QuarantineRow& row) {
  return Writer(RowKind::kQuarantine)
      .Put(row.name)
      .Put(row.payload_id)
      .Put(row.num_chunks)
      .Put(row.when)
      .PutString(row.reason)
      .Seal(PayloadIdKey(row.payload_id));
}

absl::StatusOr<QuarantineRow> DecodeQuarantine(std::string_view key, std::string_view value) {
  ASSIGN_OR_RETURN(const std::string_view body, Unseal(RowKind::kQuarantine, key, value));
  Reader reader(body);
  QuarantineRow row;
  row.name = reader.Get<Hash256>();
  row.payload_id = reader.Get<uint64_t>();
  row.num_chunks = reader.Get<uint64_t>();
  row.when = reader.GetTime();
  row.reason = reader.GetString();
  if (!reader.Complete() || PayloadIdKey(row.payload_id) != key) return Malformed();
  return row;
}

}  // namespace retroinfer::kvstore
