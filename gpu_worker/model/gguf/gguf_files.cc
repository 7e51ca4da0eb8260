#include "gpu_worker/model/gguf/gguf_files.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/missing_weights.h"

namespace retroinfer {
namespace {

namespace fs = std::filesystem;

constexpr char kSuffix[] = ".gguf";
constexpr size_t kSuffixBytes = sizeof(kSuffix) - 1;
constexpr char kCountKey[] = "split.count";
constexpr char kNumberKey[] = "split.no";
constexpr char kTensorsKey[] = "split.tensors.count";
constexpr int kEntriesMax = 4096;

// What "-00002-of-00003.gguf" at the end of a name says.
struct PartName {
  std::string stem;  // what comes before
  int64_t number = 0;
  int64_t count = 0;
};

std::optional<PartName> ReadPartName(const std::string& path) {
  constexpr size_t kPartBytes = 15;  // "-00002-of-00003"
  if (!absl::EndsWith(path, kSuffix) || path.size() < kSuffixBytes + kPartBytes) {
    return std::nullopt;
  }
  const size_t begin = path.size() - kSuffixBytes - kPartBytes;
  const std::string part = path.substr(begin, kPartBytes);
  const auto number = [&part](size_t at) -> std::optional<int64_t> {
    const std::string digits = part.substr(at, 5);
    int64_t value = 0;
    if (!std::all_of(digits.begin(), digits.end(),
                     [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }) ||
        !absl::SimpleAtoi(digits, &value)) {
      return std::nullopt;
    }
    return value;
  };
  if (part[0] != '-' || part.substr(6, 4) != "-of-") return std::nullopt;
  const std::optional<int64_t> first = number(1);
  const std::optional<int64_t> second = number(10);
  if (!first.has_value() || !second.has_value()) return std::nullopt;
  return PartName{path.substr(0, begin), *first, *second};
}

std::string PartPath(const std::string& stem, int64_t number, int64_t count) {
  return absl::StrFormat("%s-%05d-of-%05d%s", stem, number, count, kSuffix);
}

// Names all parts that are missing at once.
absl::Status FindMissing(const std::string& path, const std::string& stem, int64_t count) {
  std::vector<std::string> missing;
  std::error_code error;
  for (int64_t number = 1; number <= count; ++number) {
    const fs::path part = PartPath(stem, number, count);
    if (!fs::exists(part, error)) missing.push_back(part.filename().string());
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(path, " ",
                   DescribeMissingFiles(fs::path(path).parent_path().string(), missing,
                                        static_cast<size_t>(count))));
}

}  // namespace

absl::Status GgufFiles::Add(const std::string& path, GgufFile file) {
  for (const auto& [name, tensor] : file.tensors()) {
    if (!tensors_.emplace(name, tensor).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor \"", name, "\" is in another part, too"));
    }
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<GgufFiles> GgufFiles::Open(const std::string& path) {
  ASSIGN_OR_RETURN(GgufFile named, GgufFile::Open(path));
  ASSIGN_OR_RETURN(const int64_t count, named.metadata().IntOr(kCountKey, 0, 0, kMaxFiles));
  GgufFiles result;
  result.path_ = path;
  if (count <= 1) {
    RETURN_IF_ERROR(result.Add(path, std::move(named)));
    return result;
  }
  const std::optional<PartName> name = ReadPartName(path);
  if (!name.has_value() || name->count != count) {
    return named.metadata().Error(
        kCountKey,
        absl::StrCat("is ", count, ", so the file's name needs to end with -00001-of-",
                     absl::StrFormat("%05d", count), kSuffix, ": the other parts are found by it"));
  }
  RETURN_IF_ERROR(FindMissing(path, name->stem, count));
  result.path_ = PartPath(name->stem, 1, count);
  for (int64_t number = 1; number <= count; ++number) {
    const std::string part_path = PartPath(name->stem, number, count);
    ASSIGN_OR_RETURN(GgufFile part, GgufFile::Open(part_path));
    RETURN_IF_ERROR(part.metadata().Int(kCountKey, count, count).status());
    RETURN_IF_ERROR(part.metadata().Int(kNumberKey, number - 1, number - 1).status());
    RETURN_IF_ERROR(result.Add(part_path, std::move(part)));
  }
  const auto num_tensors = static_cast<int64_t>(result.tensors_.size());
  RETURN_IF_ERROR(
      result.metadata().IntOr(kTensorsKey, num_tensors, num_tensors, num_tensors).status());
  return result;
}

std::string GgufModelName(const std::string& path) {
  const std::string file = fs::path(path).filename().string();
  if (const std::optional<PartName> part = ReadPartName(file); part.has_value()) return part->stem;
  return absl::EndsWith(file, kSuffix) ? file.substr(0, file.size() - kSuffixBytes) : file;
}

std::vector<std::string> GgufModelsIn(const std::string& folder) {
  std::set<std::string> files;
  std::error_code error;
  int num_seen = 0;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (absl::EndsWith(name, kSuffix) && name.front() != '.') files.insert(entry->path().string());
    if (++num_seen == kEntriesMax) break;
  }
  std::vector<std::string> models;
  std::set<std::string> stems;  // of parts seen
  for (const std::string& file : files) {
    const std::optional<PartName> part = ReadPartName(file);
    if (!part.has_value() || stems.insert(part->stem).second) models.push_back(file);
  }
  return models;
}

}  // namespace retroinfer
