#include "kv_store_service/persistence/chunk_places.h"

#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "kv_store_service/persistence/segment_codec.h"

namespace retroinfer::kvstore {
namespace {

constexpr size_t kChunkKeyBytes = 12;
constexpr size_t kPayloadIdBytes = 8;
constexpr size_t kRunBytes = 36;
constexpr uint8_t kBlobType = 1;  // of a blob index: neither inlined nor with a time to live

struct PlaceRun {
  uint64_t file_number = 0;
  uint64_t offset = 0;
  uint64_t stride = 0;
  uint32_t first_chunk = 0;
  uint32_t num_chunks = 0;
  uint32_t num_bytes = 0;
};

std::string PropertyName(uint64_t payload_id) {
  return absl::StrFormat("retroinfer.places.%016x", payload_id);
}

// Takes a base-128 number, lowest digits first, from the front of `bytes`.
std::optional<uint64_t> TakeVarint(std::string_view& bytes) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto digit = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    value |= uint64_t{digit & 0x7fu} << shift;
    if ((digit & 0x80u) == 0) return value;
  }
  return std::nullopt;
}

// A blob index: a type, three numbers (file, offset, size), and how the value is compressed.
std::optional<ChunkPlace> ParseBlobIndex(std::string_view bytes) {
  if (bytes.empty() || static_cast<uint8_t>(bytes.front()) != kBlobType) return std::nullopt;
  bytes.remove_prefix(1);
  const auto file = TakeVarint(bytes);
  const auto offset = TakeVarint(bytes);
  const auto size = TakeVarint(bytes);
  if (!file.has_value() || !offset.has_value() || !size.has_value() || *size > UINT32_MAX ||
      bytes.size() != 1 || bytes.front() != 0) {
    return std::nullopt;
  }
  return ChunkPlace{*file, *offset, static_cast<uint32_t>(*size)};
}

uint32_t ChunkOf(std::string_view key) {
  uint32_t chunk = 0;
  for (const char c : key.substr(kPayloadIdBytes)) chunk = chunk << 8 | static_cast<uint8_t>(c);
  return chunk;
}

// Adds a chunk to the last run if it continues that one.
void AddTo(std::vector<PlaceRun>& runs, uint32_t chunk, const ChunkPlace& place) {
  if (!runs.empty()) {
    PlaceRun& last = runs.back();
    const bool follows = last.file_number == place.file_number &&
                         last.num_bytes == place.num_bytes && place.offset > last.offset &&
                         last.first_chunk + last.num_chunks == chunk;
    if (follows && last.num_chunks == 1) last.stride = place.offset - last.offset;
    if (follows && place.offset == last.offset + last.num_chunks * last.stride) {
      ++last.num_chunks;
      return;
    }
  }
  runs.push_back({.file_number = place.file_number,
                  .offset = place.offset,
                  .stride = 0,
                  .first_chunk = chunk,
                  .num_chunks = 1,
                  .num_bytes = place.num_bytes});
}

template <typename T>
void Append(T value, std::string& to) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string Encode(const std::vector<PlaceRun>& runs) {
  std::string value;
  for (const PlaceRun& run : runs) {
    Append(run.file_number, value);
    Append(run.offset, value);
    Append(run.stride, value);
    Append(run.first_chunk, value);
    Append(run.num_chunks, value);
    Append(run.num_bytes, value);
  }
  return value;
}

PlaceRun DecodeRun(std::string_view bytes) {
  PlaceRun run;
  std::memcpy(&run.file_number, bytes.data(), 8);
  std::memcpy(&run.offset, bytes.data() + 8, 8);
  std::memcpy(&run.stride, bytes.data() + 16, 8);
  std::memcpy(&run.first_chunk, bytes.data() + 24, 4);
  std::memcpy(&run.num_chunks, bytes.data() + 28, 4);
  std::memcpy(&run.num_bytes, bytes.data() + 32, 4);
  return run;
}

class PlaceCollector final : public rocksdb::TablePropertiesCollector {
 public:
  rocksdb::Status AddUserKey(const rocksdb::Slice& key, const rocksdb::Slice& value,
                             rocksdb::EntryType type, rocksdb::SequenceNumber /*sequence*/,
                             uint64_t /*file_bytes*/) override {
    if (type != rocksdb::kEntryBlobIndex || key.size() != kChunkKeyBytes) {
      return rocksdb::Status::OK();
    }
    const auto place = ParseBlobIndex(ToView(value));
    const auto id = ParsePayloadIdKey(ToView(key).substr(0, kPayloadIdBytes));
    if (place.has_value() && id.ok()) AddTo(runs_[*id], ChunkOf(ToView(key)), *place);
    return rocksdb::Status::OK();
  }
  rocksdb::Status Finish(rocksdb::UserCollectedProperties* properties) override {
    for (const auto& [id, runs] : runs_) (*properties)[PropertyName(id)] = Encode(runs);
    return rocksdb::Status::OK();
  }
  rocksdb::UserCollectedProperties GetReadableProperties() const override { return {}; }
  const char* Name() const override { return "retroinfer.places"; }

 private:
  std::map<uint64_t, std::vector<PlaceRun>> runs_;  // by payload
};

class PlaceCollectorFactory final : public rocksdb::TablePropertiesCollectorFactory {
 public:
  rocksdb::TablePropertiesCollector* CreateTablePropertiesCollector(Context /*context*/) override {
    return new PlaceCollector();  // RocksDB deletes it
  }
  const char* Name() const override { return "retroinfer.places"; }
};

void Place(std::string_view value, std::vector<ChunkPlace>& places) {
  for (; value.size() >= kRunBytes; value.remove_prefix(kRunBytes)) {
    const PlaceRun run = DecodeRun(value);
    if (uint64_t{run.first_chunk} + run.num_chunks > places.size()) continue;
    for (uint32_t i = 0; i < run.num_chunks; ++i) {
      places[run.first_chunk + i] = {run.file_number, run.offset + i * run.stride, run.num_bytes};
    }
  }
}

}  // namespace

std::shared_ptr<rocksdb::TablePropertiesCollectorFactory> MakePlaceCollectorFactory() {
  return std::make_shared<PlaceCollectorFactory>();
}

std::optional<std::vector<ChunkPlace>> FindPlaces(SegmentTables* tables, uint64_t payload_id,
                                                  uint64_t num_chunks) {
  const std::string begin = ChunkKey(payload_id, 0);
  const std::string end = ChunkKey(payload_id + 1, 0);
  const rocksdb::Range range{rocksdb::Slice(begin), rocksdb::Slice(end)};
  rocksdb::TablePropertiesCollection found;
  const rocksdb::Status status =
      tables->db().GetPropertiesOfTablesInRange(tables->handle(Table::kPayload), &range, 1, &found);
  if (!status.ok()) return std::nullopt;
  std::vector<ChunkPlace> places(num_chunks);
  const std::string name = PropertyName(payload_id);
  for (const auto& [file, properties] : found) {
    const auto property = properties->user_collected_properties.find(name);
    if (property != properties->user_collected_properties.end()) Place(property->second, places);
  }
  for (const ChunkPlace& place : places) {
    if (place.num_bytes == 0) return std::nullopt;
  }
  return places;
}

}  // namespace retroinfer::kvstore
