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

// A complete enough download of the model; empty if there is none.
std::string DownloadedCopy(const std::string& hub_id) {
  const std::string name = "models--" + absl::StrReplaceAll(hub_id, {{"/", "--"}});
  std::error_code error;
  for (const auto& snapshot : fs::directory_iterator(HubCache() / name / "snapshots", error)) {
    if (fs::exists(snapshot.path() / "config.json", error)) return snapshot.path().string();
  }
  return "";
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

bool HasFileThatEndsWith(const std::string& folder, const char* end) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (absl::EndsWith(entry.path().filename().string(), end)) return true;
  }
  return false;
}

}  // namespace

absl::Status RequireModelFolder(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return ExplainMissing(path);
    return common::ErrnoStatus(errno, absl::StrCat("the model folder ", path));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is no folder; name the folder that it is in: ", kLayout));
  }
  const std::string config = path + "/config.json";
  if (::stat(config.c_str(), &info) == 0) return absl::OkStatus();
  if (errno != ENOENT && errno != ENOTDIR) return common::ErrnoStatus(errno, config);
  if (HasFileThatEndsWith(path, ".gguf")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has GGUF files, which are not supported; ", kLayout));
  }
  return absl::InvalidArgumentError(absl::StrCat(path, " has no config.json; ", kLayout));
}

}  // namespace retroinfer
