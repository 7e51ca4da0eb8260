// Segments for tests of the durable store: their bytes follow from a seed.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "common/hash/segment_name.h"
#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore::testing {

// A folder that is removed with this object.
class TempFolder {
 public:
  TempFolder() {
    std::string path = Base() + "/segments-XXXXXX";
    path_ = mkdtemp(path.data());
  }
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  // A folder that does not exist yet.
  std::string path() const { return path_ + "/store"; }

 private:
  // Memory, where there is some: what a test proves does not depend on the disk.
  static std::string Base() {
    return access("/dev/shm", W_OK) == 0 ? "/dev/shm"
                                         : std::filesystem::temp_directory_path().string();
  }

  std::string path_;
};

struct Sample {
  SegmentRecord record;
  std::vector<int32_t> token_ids;
  std::vector<std::byte> image;

  const SegmentName& name() const { return record.name; }
};

inline absl::Time At(int64_t seconds) { return absl::FromUnixSeconds(1'700'000'000 + seconds); }

inline std::vector<std::byte> SampleImage(uint64_t seed, size_t bytes) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> image(bytes);
  for (std::byte& byte : image) byte = static_cast<std::byte>(random() >> 56);
  return image;
}

// The segment number `seed` of a tenant; two of them never have the same name or bytes.
inline Sample MakeSample(uint64_t seed, size_t image_bytes = 5000, const std::string& salt = "") {
  Sample sample;
  SegmentRecord& record = sample.record;
  std::mt19937 random(static_cast<uint32_t>(seed));
  sample.token_ids.resize(1024);
  for (int32_t& token : sample.token_ids) token = static_cast<int32_t>(random() % 150000);
  sample.token_ids[0] = static_cast<int32_t>(seed);
  sample.image = SampleImage(seed, image_bytes);
  record.salt_hash = common::SaltHash(salt);
  record.fingerprint_hash = common::FingerprintHash("model");
  record.root = common::RootName("model", record.salt_hash, 1);
  record.parent = record.root;
  record.name = common::NameSegment(record.parent, sample.token_ids);
  record.token_begin = 4;
  record.num_tokens = 1024;
  record.image_bytes = image_bytes;
  record.created = At(0);
  record.last_use = At(0);
  return sample;
}

inline absl::Status PutSample(SegmentStorage& storage, const Sample& sample) {
  return storage.Put(sample.record, sample.token_ids, sample.image);
}

// OK if the storage has the segment and all its bytes are right; DATA_LOSS "wrong" if it returned
// other bytes; else the error of the storage.
inline absl::Status CheckSample(SegmentStorage& storage, const Sample& sample) {
  const auto record = storage.Find(sample.name(), sample.token_ids);
  if (!record.ok()) return record.status();
  std::vector<std::byte> image(sample.image.size(), std::byte{0xee});
  const absl::Status status = storage.Read(sample.name(), image);
  if (!status.ok()) return status;
  if (image != sample.image || record->num_tokens != sample.record.num_tokens ||
      record->parent != sample.record.parent || record->salt_hash != sample.record.salt_hash ||
      record->token_begin != sample.record.token_begin) {
    return absl::InternalError("WRONG BYTES WERE SERVED");
  }
  return absl::OkStatus();
}

}  // namespace retroinfer::kvstore::testing
