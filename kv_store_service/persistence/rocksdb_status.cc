#include "kv_store_service/persistence/rocksdb_status.h"

#include <rocksdb/status.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace retroinfer::kvstore {
namespace {

absl::StatusCode CodeOf(const rocksdb::Status& status) {
  if (status.IsNoSpace() || status.subcode() == rocksdb::Status::kSpaceLimit ||
      status.IsMemoryLimit()) {
    return absl::StatusCode::kResourceExhausted;
  }
  if (status.IsPathNotFound()) return absl::StatusCode::kDataLoss;
  switch (status.code()) {
    case rocksdb::Status::kNotFound:
      return absl::StatusCode::kNotFound;
    case rocksdb::Status::kCorruption:
      return absl::StatusCode::kDataLoss;
    case rocksdb::Status::kBusy:
    case rocksdb::Status::kTryAgain:
    case rocksdb::Status::kTimedOut:
    case rocksdb::Status::kShutdownInProgress:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status RocksDbStatus(const rocksdb::Status& status, std::string_view what) {
  if (status.ok()) return absl::OkStatus();
  const std::string words = status.ToString();
  return absl::Status(CodeOf(status),
                      absl::StrCat(absl::string_view(what.data(), what.size()), ": ", words));
}

}  // namespace retroinfer::kvstore
