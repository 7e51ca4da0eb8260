#include "gpu_worker/model/checkpoint.h"

#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/json/json_reader.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/missing_weights.h"
#include "gpu_worker/model/safetensors_file.h"

namespace retroinfer {
namespace {

constexpr char kSingleName[] = "/model.safetensors";
constexpr char kIndexName[] = "/model.safetensors.index.json";
constexpr common::JsonLimits kIndexLimits = {
    .bytes_max = size_t{64} << 20, .values_max = 10 * SafetensorsFile::kMaxTensors, .depth_max = 4};

// Whether `name` can only be a file of the folder itself.
bool IsPlainFileName(const std::string& name) {
  const std::string suffix = ".safetensors";
  return name.size() > suffix.size() && name.size() <= 255 && name.front() != '.' &&
         name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0 &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

// file name -> tensors that the index says are in it.
using Shards = std::map<std::string, std::set<std::string>>;

absl::StatusOr<Shards> ReadShards(const common::JsonReader& index) {
  ASSIGN_OR_RETURN(const common::JsonReader weight_map, index.Object("weight_map"));
  Shards shards;
  for (const common::JsonMember& member : weight_map.json().Members()) {
    const std::string tensor(member.key);
    if (tensor.size() > SafetensorsFile::kMaxNameBytes) {
      return weight_map.Error(tensor,
                              absl::StrCat("has ", tensor.size(), " bytes; at most ",
                                           SafetensorsFile::kMaxNameBytes, " are accepted"));
    }
    ASSIGN_OR_RETURN(const std::string file, weight_map.String(member));
    if (!IsPlainFileName(file)) {
      return weight_map.Error(tensor, absl::StrCat("is \"", file.substr(0, 80),
                                                   "\"; needs the name of a .safetensors file in "
                                                   "the same folder"));
    }
    shards[file].insert(tensor);
    if (shards.size() > Checkpoint::kMaxFiles) {
      return index.Error("weight_map",
                         absl::StrCat("names more than ", Checkpoint::kMaxFiles, " files"));
    }
  }
  if (shards.empty()) return index.Error("weight_map", "is empty");
  return shards;
}

// Checks that a file holds the tensors that the index says, and no others.
absl::Status CheckShard(const common::JsonReader& index, const std::string& file,
                        const std::set<std::string>& expected,
                        const std::map<std::string, HostTensor>& tensors) {
  for (const std::string& name : expected) {
    if (tensors.find(name) == tensors.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(index.place(), ": tensor \"", name, "\" is not in ", file));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (expected.find(name) == expected.end()) {
      return absl::InvalidArgumentError(absl::StrCat(index.place(), ": does not place tensor \"",
                                                     name, "\" in ", file, ", which holds it"));
    }
  }
  return absl::OkStatus();
}

// Names all files of an unfinished download at once.
absl::Status FindMissing(const std::string& folder, const common::JsonReader& index,
                         const Shards& shards) {
  std::vector<std::string> missing;
  std::error_code error;
  for (const auto& [name, tensors] : shards) {
    if (!std::filesystem::exists(folder + "/" + name, error)) missing.push_back(name);
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(index.place(), " ", DescribeMissingFiles(folder, missing, shards.size())));
}

}  // namespace

absl::Status Checkpoint::Add(std::unique_ptr<TensorFile> file) {
  for (const auto& [name, tensor] : file->tensors()) {
    if (!tensors_.emplace(name, tensor).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder_, ": tensor \"", name, "\" is in two files"));
    }
    total_bytes_ += tensor.num_bytes();
    is_coded_ |= tensor.coding != nullptr;
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

Checkpoint Checkpoint::Of(const std::string& place, const std::string& described_by,
                          std::unique_ptr<TensorFile> file) {
  Checkpoint checkpoint;
  checkpoint.described_by_ = described_by;
  checkpoint.folder_ = place;
  const absl::Status added = checkpoint.Add(std::move(file));
  RI_CHECK(added.ok());  // no file holds a name twice
  return checkpoint;
}

absl::StatusOr<Checkpoint> Checkpoint::OpenIndexed(const std::string& folder) {
  ASSIGN_OR_RETURN(
      const common::JsonReader index,
      common::JsonReader::LoadObject(folder + kIndexName, folder + kIndexName, kIndexLimits));
  ASSIGN_OR_RETURN(const Shards shards, ReadShards(index));
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  RETURN_IF_ERROR(FindMissing(folder, index, shards));
  for (const auto& [name, tensors] : shards) {
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(folder + "/" + name));
    RETURN_IF_ERROR(CheckShard(index, name, tensors, file.tensors()));
    RETURN_IF_ERROR(checkpoint.Add(std::make_unique<SafetensorsFile>(std::move(file))));
  }
  return checkpoint;
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& folder) {
  absl::StatusOr<SafetensorsFile> single = SafetensorsFile::Open(folder + kSingleName);
  if (single.ok()) {
    Checkpoint checkpoint;
    checkpoint.folder_ = folder;
    RETURN_IF_ERROR(checkpoint.Add(std::make_unique<SafetensorsFile>(*std::move(single))));
    return checkpoint;
  }
  if (!absl::IsNotFound(single.status())) return single.status();
  const absl::StatusOr<MappedFile> index = MappedFile::Open(folder + kIndexName);
  if (absl::IsNotFound(index.status())) {
    return absl::NotFoundError(absl::StrCat(
        folder, " holds no weights: needs model.safetensors or model.safetensors.index.json",
        InsteadOfWeights(folder)));
  }
  return OpenIndexed(folder);
}

Checkpoint Checkpoint::View() const {
  Checkpoint view;
  view.folder_ = folder_;
  view.tensors_ = tensors_;
  view.total_bytes_ = total_bytes_;
  view.is_coded_ = is_coded_;
  view.described_by_ = described_by_;
  return view;
}

void Checkpoint::Replace(const std::string& name, HostTensor tensor) {
  HostTensor& old = tensors_.at(name);
  total_bytes_ += tensor.num_bytes() - old.num_bytes();
  is_coded_ |= tensor.coding != nullptr;
  old = std::move(tensor);
}

void Checkpoint::Exchange(const std::vector<std::string>& taken,
                          std::vector<std::pair<std::string, HostTensor>> made) {
  for (const std::string& name : taken) {
    total_bytes_ -= tensors_.at(name).num_bytes();
    tensors_.erase(name);
  }
  for (auto& [name, tensor] : made) {
    total_bytes_ += tensor.num_bytes();
    is_coded_ |= tensor.coding != nullptr;
    RI_CHECK(tensors_.emplace(name, std::move(tensor)).second);
  }
}

absl::StatusOr<HostTensor> Checkpoint::Find(const std::string& name,
                                            const std::vector<int64_t>& shape) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return absl::InvalidArgumentError(absl::StrCat(folder_, ": tensor \"", name, "\" is missing; ",
                                                   described_by_, " asks for it with shape [",
                                                   absl::StrJoin(shape, ", "), "]"));
  }
  if (it->second.shape != shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder_, ": tensor \"", name, "\" has shape [", absl::StrJoin(it->second.shape, ", "),
        "]; ", described_by_, " asks for [", absl::StrJoin(shape, ", "), "]"));
  }
  return it->second;
}

}  // namespace retroinfer
