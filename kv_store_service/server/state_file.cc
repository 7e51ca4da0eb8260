#include "kv_store_service/server/state_file.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status/errno_status.h"

namespace retroinfer::kvstore {
namespace {

constexpr char kFirstLine[] = "retroinfer-store-state 1";

template <typename T>
bool Take(const std::map<std::string, std::string>& fields, const char* name, T* value) {
  const auto field = fields.find(name);
  return field != fields.end() && absl::SimpleAtoi(field->second, value);
}

}  // namespace

absl::Status StateFile::Write(const StateNote& note) {
  const std::string temporary = path_ + ".new";
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << kFirstLine << "\nworker_pid " << note.worker_pid << "\narena_bytes " << note.arena_bytes
         << "\nnum_layers " << note.geometry.num_layers << "\nnum_kv_heads "
         << note.geometry.num_kv_heads << "\nhead_dim " << note.geometry.head_dim << "\ndtype "
         << static_cast<uint32_t>(note.geometry.dtype) << "\nfingerprint "
         << absl::BytesToHexString(note.model_fingerprint) << "\n";
    file.flush();
    if (!file) return common::ErrnoStatus(errno != 0 ? errno : EIO, "writing " + temporary);
  }
  if (::rename(temporary.c_str(), path_.c_str()) != 0) {
    return common::ErrnoStatus(errno, absl::StrCat("renaming ", temporary));
  }
  return absl::OkStatus();
}

void StateFile::Remove() { ::unlink(path_.c_str()); }

std::optional<StateNote> StateFile::Read() const {
  std::ifstream file(path_);
  if (!file) return std::nullopt;
  std::string line;
  std::getline(file, line);
  std::map<std::string, std::string> fields;
  if (line == kFirstLine) {
    std::string name;
    std::string value;
    while (fields.size() < 16 && file >> name >> value) fields[name] = value;
  }
  StateNote note;
  uint32_t dtype = 0;
  const bool understood = Take(fields, "worker_pid", &note.worker_pid) &&
                          Take(fields, "arena_bytes", &note.arena_bytes) &&
                          Take(fields, "num_layers", &note.geometry.num_layers) &&
                          Take(fields, "num_kv_heads", &note.geometry.num_kv_heads) &&
                          Take(fields, "head_dim", &note.geometry.head_dim) &&
                          Take(fields, "dtype", &dtype);
  note.geometry.dtype = static_cast<DType>(dtype);
  if (!understood || !note.geometry.Validate().ok()) {
    spdlog::warn("ignoring {}: it is not a state file of this version", path_);
    return std::nullopt;
  }
  note.model_fingerprint = absl::HexStringToBytes(fields["fingerprint"]);
  return note;
}

bool ProcessIsAlive(pid_t pid) { return pid <= 0 || ::kill(pid, 0) == 0 || errno != ESRCH; }

}  // namespace retroinfer::kvstore
