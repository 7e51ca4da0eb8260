#include "tests/support/storage/crash_point.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace retroinfer::kvstore {
namespace {

constexpr std::array<StorageStage, 5> kStages = {
    StorageStage::kPutBegun, StorageStage::kPutHalfPayload, StorageStage::kPutPayload,
    StorageStage::kPutCommitted, StorageStage::kDeleteCommitted};

}  // namespace

std::string_view StageName(StorageStage stage) {
  switch (stage) {
    case StorageStage::kPutBegun:
      return "put-begun";
    case StorageStage::kPutHalfPayload:
      return "put-half-payload";
    case StorageStage::kPutPayload:
      return "put-payload";
    case StorageStage::kPutCommitted:
      return "put-committed";
    case StorageStage::kDeleteCommitted:
      return "delete-committed";
  }
  return "unknown";
}

absl::StatusOr<StorageStageHook> ParseCrashPoint(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string number(colon == text.npos ? "" : text.substr(colon + 1));
  int nth = 0;
  if (absl::SimpleAtoi(number, &nth) && nth >= 1) {
    for (StorageStage wanted : kStages) {
      if (StageName(wanted) != text.substr(0, colon)) continue;
      auto left = std::make_shared<std::atomic<int>>(nth);
      return StorageStageHook([wanted, left](StorageStage stage) {
        if (stage == wanted && left->fetch_sub(1) == 1) kill(getpid(), SIGKILL);
      });
    }
  }
  std::string stages;
  for (StorageStage stage : kStages) absl::StrAppend(&stages, " ", std::string(StageName(stage)));
  return absl::InvalidArgumentError(
      absl::StrCat("a crash point is <stage>:<n>, n at least 1; stages:", stages));
}

}  // namespace retroinfer::kvstore
