#include "gpu_worker/model/model_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/status/errno_status.h"
#include "gpu_worker/model/missing_weights.h"

namespace retroinfer {
namespace {

namespace fs = std::filesystem;

constexpr char kLayout[] =
    "a model folder (Hugging Face layout) has config.json, tokenizer.json and *.safetensors";

// "organisation/model", as the hub names models.
bool LooksLikeHubId(const std::string& path) {
  const auto is_name = [](std::string_view text) {
    return !text.empty() && text.size() <= 96 && text.front() != '.' &&
           std::all_of(text.begin(), text.end(), [](char c) {
             return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                    c == '.';
           });
  };
  const size_t slash = path.find('/');
  return slash != std::string::npos && is_name(std::string_view(path).substr(0, slash)) &&
         is_name(std::string_view(path).substr(slash + 1));
}

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The folder where the hub's own tools keep what they download.
fs::path HubCache() {
  if (const std::string cache = Variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = Variable("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  return fs::path(Variable("HOME")) / ".cache/huggingface/hub";
}

// The first snapshot with a config.json in a folder of that cache; empty if there is none.
std::string CompleteSnapshot(const fs::path& folder) {
  std::error_code error;
  for (const auto& snapshot : fs::directory_iterator(folder / "snapshots", error)) {
    if (fs::exists(snapshot.path() / "config.json", error)) return snapshot.path().string();
  }
  return "";
}

// A complete enough download of the model; empty if there is none.
std::string DownloadedCopy(const std::string& hub_id) {
  return CompleteSnapshot(HubCache() / ("models--" + absl::StrReplaceAll(hub_id, {{"/", "--"}})));
}

absl::Status ExplainMissing(const std::string& path) {
  if (!LooksLikeHubId(path)) {
    return absl::NotFoundError(absl::StrCat("there is no folder ", path, "; ", kLayout));
  }
  const std::string copy = DownloadedCopy(path);
  return absl::NotFoundError(absl::StrCat(
      "there is no folder ", path,
      "; if this is the name of a model on the Hugging Face hub: nothing is downloaded here, ",
      copy.empty() ? absl::StrCat("run 'hf download ", path, " --local-dir DIR' and name DIR")
                   : absl::StrCat("but there is a downloaded copy at ", copy)));
}

// A file is named where a folder is wanted.
absl::Status ExplainFile(const std::string& path) {
  std::error_code error;
  fs::path folder = fs::path(path).parent_path();
  if (folder.empty()) folder = ".";
  const bool in_model_folder = fs::exists(folder / "config.json", error);
  return absl::InvalidArgumentError(
      in_model_folder
          ? absl::StrCat(path, " is a file of a model folder: name the folder, ", folder.string())
          : absl::StrCat(path, " is no folder; name the folder that it is in: ", kLayout));
}

// Files of folders that are taken for model folders, and what these are.
struct OtherFolder {
  const char* file;
  const char* what;
};
constexpr OtherFolder kOtherFolders[] = {
    {"adapter_config.json",
     "it holds an adapter (LoRA) of a model: merge it into that (merge_and_unload of the package "
     "peft) and save the result"},
    {"params.json",
     "it has a model in its makers' own format: get it in the Hugging Face layout (the same "
     "repository often has both)"},
    {"model_index.json", "it holds a pipeline of a diffusion model, which is not supported"},
};

// A folder has no config.json.
absl::Status ExplainFolder(const std::string& path) {
  std::error_code error;
  const std::string beginning = absl::StrCat(path, " has no config.json");
  if (fs::is_symlink(path + "/config.json", error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(beginning,
                     "; the file of that name is a link to one that is not there: copy "
                     "the files that links lead to ('cp -rL'), not the links"));
  }
  if (const std::string snapshot = CompleteSnapshot(path); !snapshot.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(beginning, "; name ", snapshot, " in it"));
  }
  for (const OtherFolder& other : kOtherFolders) {
    if (!fs::exists(fs::path(path) / other.file, error)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(beginning, " but ", other.file, "; ", other.what));
  }
  return absl::InvalidArgumentError(absl::StrCat(beginning, InsteadOfWeights(path), "; ", kLayout));
}

}  // namespace

absl::Status RequireModelFolder(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return ExplainMissing(path);
    return common::ErrnoStatus(errno, absl::StrCat("the model folder ", path));
  }
  if (!S_ISDIR(info.st_mode)) return ExplainFile(path);
  const std::string config = path + "/config.json";
  if (::stat(config.c_str(), &info) == 0) return absl::OkStatus();
  if (errno != ENOENT && errno != ENOTDIR) return common::ErrnoStatus(errno, config);
  return ExplainFolder(path);
}

}  // namespace retroinfer
