#include "common/files/lfs_pointer.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace retroinfer::common {
namespace {

constexpr std::string_view kBeginning = "version https://git-lfs.github.com/spec/";
constexpr size_t kPointerBytesMax = 1024;  // of the specification

// " to a file of 988097824 bytes"; empty if the pointer does not say.
std::string Target(std::string_view pointer) {
  const absl::string_view text(pointer.data(), pointer.size());
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    uint64_t bytes = 0;
    if (!absl::StartsWith(line, "size ") || !absl::SimpleAtoi(line.substr(5), &bytes)) continue;
    return absl::StrCat(" to a file of ", bytes, " bytes");
  }
  return "";
}

}  // namespace

absl::Status RefuseLfsPointer(std::string_view bytes, std::string_view path) {
  if (!bytes.starts_with(kBeginning)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(path), " is a pointer of Git LFS", Target(bytes.substr(0, kPointerBytesMax)),
      ", which was not fetched: run 'git lfs install' and then 'git lfs pull' in its folder, or "
      "download the model with 'hf download'"));
}

}  // namespace retroinfer::common
