#include "gpu_worker/model/missing_weights.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace retroinfer {
namespace {

namespace fs = std::filesystem;

constexpr int kEntriesMax = 4096;
constexpr size_t kNamedMax = 3;
constexpr char kDownloadAgain[] =
    "run the download again, which goes on where it ended ('hf download NAME --local-dir DIR')";

// The first entry of a folder that `wanted` takes; empty if there is none.
fs::path Find(const fs::path& folder, const std::function<bool(const fs::path&)>& wanted) {
  std::error_code error;
  int num_seen = 0;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (wanted(entry->path())) return entry->path();
    if (++num_seen == kEntriesMax) break;
  }
  return {};
}

bool EndsWithOneOf(const fs::path& path, std::initializer_list<const char*> ends) {
  const std::string name = path.filename().string();
  return std::any_of(ends.begin(), ends.end(),
                     [&](const char* end) { return absl::EndsWith(name, end); });
}

// As the hub's tools, browsers, wget-like programs and aria2 name what is not complete.
bool IsUnfinished(const fs::path& path) {
  return EndsWithOneOf(path, {".incomplete", ".part", ".partial", ".crdownload", ".aria2"});
}

bool IsBrokenLink(const fs::path& path) {
  std::error_code error;
  return path.extension() == ".safetensors" && fs::is_symlink(path, error) &&
         !fs::exists(path, error);
}

// PyTorch's own format, TensorFlow's, JAX's, and ONNX; trainers leave other files that end so.
bool IsOtherFormat(const fs::path& path) {
  const std::string name = path.filename().string();
  const auto begins = [&](const char* start) { return absl::StartsWith(name, start); };
  return (begins("pytorch_model") || begins("consolidated") || begins("model") ||
          begins("tf_model") || begins("flax_model")) &&
         EndsWithOneOf(path, {".bin", ".pth", ".pt", ".h5", ".msgpack", ".onnx"});
}

// In the folder itself, or where the hub's tools keep what they have not finished: below it, and
// beside the snapshots that it is one of.
fs::path FindUnfinished(const fs::path& folder) {
  std::vector<fs::path> places = {folder, folder / ".cache/huggingface/download"};
  std::error_code error;
  fs::path snapshots = fs::absolute(folder, error).lexically_normal().parent_path();
  if (!folder.has_filename()) snapshots = snapshots.parent_path();  // "snapshots/name/"
  if (snapshots.filename() == "snapshots") places.push_back(snapshots.parent_path() / "blobs");
  for (const fs::path& place : places) {
    if (fs::path found = Find(place, IsUnfinished); !found.empty()) {
      return found.lexically_normal();
    }
  }
  return {};
}

}  // namespace

std::string InsteadOfWeights(const std::string& folder) {
  if (const fs::path link = Find(folder, IsBrokenLink); !link.empty()) {
    return absl::StrCat("; ", link.filename().string(),
                        " is a link to a file that is not there: copy the files that links lead to "
                        "('cp -rL'), not the links");
  }
  if (const fs::path unfinished = FindUnfinished(folder); !unfinished.empty()) {
    return absl::StrCat("; the download is not complete, ", unfinished.string(),
                        " is a part: ", kDownloadAgain);
  }
  const fs::path gguf = Find(folder, [](const fs::path& p) { return EndsWithOneOf(p, {".gguf"}); });
  if (!gguf.empty()) {
    return absl::StrCat("; ", gguf.filename().string(),
                        " is a model in GGUF, which can be named in the folder's place");
  }
  const fs::path other = Find(folder, IsOtherFormat);
  if (!other.empty()) {
    return absl::StrCat("; ", other.filename().string(),
                        " is of another format: get the model as safetensors, or convert it with "
                        "transformers (from_pretrained, then save_pretrained)");
  }
  return "";
}

std::string DescribeMissingFiles(const std::string& folder, const std::vector<std::string>& missing,
                                 size_t num_files) {
  const size_t num_named = std::min(missing.size(), kNamedMax);
  std::string text =
      absl::StrCat("names ", num_files, " files of weights, of which ", missing.size(),
                   missing.size() == 1 ? " is missing: " : " are missing: ",
                   absl::StrJoin(missing.begin(),
                                 missing.begin() + static_cast<std::ptrdiff_t>(num_named), ", "),
                   num_named < missing.size() ? " ..." : "");
  const std::string instead = InsteadOfWeights(folder);
  return absl::StrCat(text, instead.empty() ? absl::StrCat("; ", kDownloadAgain) : instead);
}

}  // namespace retroinfer
