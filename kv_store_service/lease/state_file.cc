#include "kv_store_service/lease/state_file.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/files/regular_file.h"
#include "common/hash/hex_digits.h"
#include "common/shm/worker_mark.h"

namespace retroinfer::kvstore {
namespace {

constexpr char kFirstLine[] = "retroinfer-store-state 1";
constexpr size_t kBytesMax = 4096;

template <typename T>
bool Take(const std::map<std::string, std::string>& fields, const char* name, T* value) {
  const auto field = fields.find(name);
  return field != fields.end() && absl::SimpleAtoi(field->second, value);
}

// Only of models that have window layers: without these lines there are none.
std::string WindowLines(const KvGeometry& geometry) {
  if (!geometry.has_window_layers()) return "";
  return absl::StrCat("\nnum_window_layers ", geometry.num_window_layers, "\nwindow_tokens ",
                      geometry.window_tokens);
}

bool ProcessIsAlive(pid_t pid) { return pid <= 0 || ::kill(pid, 0) == 0 || errno != ESRCH; }

}  // namespace

absl::Status StateFile::Write(const StateNote& note) {
  return common::ReplaceRegularFile(
      path_,
      absl::StrCat(kFirstLine, "\nworker_pid ", note.worker_pid, "\narena_bytes ", note.arena_bytes,
                   "\nnum_layers ", note.geometry.num_layers, "\nnum_kv_heads ",
                   note.geometry.num_kv_heads, "\nhead_dim ", note.geometry.head_dim, "\ndtype ",
                   static_cast<uint32_t>(note.geometry.format.id), WindowLines(note.geometry),
                   "\nfingerprint ", absl::BytesToHexString(note.model_fingerprint), "\n"));
}

void StateFile::Remove() { ::unlink(path_.c_str()); }

std::optional<StateNote> ParseStateNote(const std::string& text) {
  std::istringstream file(text);
  std::string line;
  std::getline(file, line);
  std::map<std::string, std::string> fields;
  if (line == kFirstLine) {
    std::string name;
    std::string value;
    while (fields.size() < 16 && file >> name >> value) fields[name] = value;
  }
  StateNote note;
  uint32_t format_number = 0;
  const bool understood = Take(fields, "worker_pid", &note.worker_pid) &&
                          Take(fields, "arena_bytes", &note.arena_bytes) &&
                          Take(fields, "num_layers", &note.geometry.num_layers) &&
                          Take(fields, "num_kv_heads", &note.geometry.num_kv_heads) &&
                          Take(fields, "head_dim", &note.geometry.head_dim) &&
                          Take(fields, "dtype", &format_number) &&
                          (!fields.contains("num_window_layers") ||
                           (Take(fields, "num_window_layers", &note.geometry.num_window_layers) &&
                            Take(fields, "window_tokens", &note.geometry.window_tokens)));
  const absl::StatusOr<KvFormat> format = KvFormatOfNumber(format_number);
  std::optional<std::string> fingerprint = common::BytesOfHexDigits(fields["fingerprint"]);
  if (!understood || !format.ok() || !fingerprint) return std::nullopt;
  note.geometry.format = *format;
  if (!note.geometry.Validate().ok()) return std::nullopt;
  note.model_fingerprint = *std::move(fingerprint);
  return note;
}

std::optional<StateNote> StateFile::Read() const {
  const absl::StatusOr<std::string> text = common::ReadRegularFile(path_, kBytesMax);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  const std::optional<StateNote> note = text.ok() ? ParseStateNote(*text) : std::nullopt;
  if (!note.has_value()) {
    spdlog::warn("ignoring {}: {}", path_,
                 text.ok() ? "it is not a state file of this version"
                           : std::string(text.status().message()));
  }
  return note;
}

bool StateFile::HolderLives(const StateNote& note) const {
  const auto held = common::WorkerMark::IsHeld(path_.substr(0, path_.rfind('/')));
  return held.has_value() ? *held : ProcessIsAlive(note.worker_pid);
}

}  // namespace retroinfer::kvstore
