#include "gpu_worker/ranks/result_merge.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

absl::Status OfRank(int rank, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("rank ", rank, ": ", std::string(status.message())));
}

absl::Status Differs(int rank, const char* what) {
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", rank, " and rank 0 do not do the same any more: ", what));
}

// The entries of sequences that do not fail.
template <typename Entry, typename IdOf>
std::vector<Entry> Others(const std::vector<Entry>& entries, const CommandResult& result,
                          const IdOf& id_of) {
  std::vector<Entry> others;
  std::copy_if(entries.begin(), entries.end(), std::back_inserter(others),
               [&](const Entry& entry) { return result.FailureOf(id_of(entry)) == nullptr; });
  return others;
}

uint64_t Itself(uint64_t id) { return id; }

template <typename Entry>
uint64_t IdOf(const Entry& entry) {
  return entry.id;
}

template <typename Entry, typename IsSame>
bool AreSame(const std::vector<Entry>& a, const std::vector<Entry>& b, const IsSame& is_same) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), is_same);
}

bool SaveTheSame(const std::vector<CommandResult::Failure>& a,
                 const std::vector<CommandResult::Failure>& b) {
  return AreSame(a, b, [](const auto& x, const auto& y) { return x.id == y.id; });
}

absl::Status CheckRest(int rank, const CommandResult& other, const CommandResult& own) {
  using Progress = CommandResult::Progress;
  using Read = CommandResult::Read;
  // `own` has the failures of both.
  if (Others(other.without_memory, own, Itself) != own.without_memory) {
    return Differs(rank, "who gets memory");
  }
  if (Others(other.finished, own, Itself) != own.finished) {
    return Differs(rank, "whose prompt is finished");
  }
  if (!AreSame(Others(other.progress, own, IdOf<Progress>), own.progress,
               [](const Progress& a, const Progress& b) {
                 return a.id == b.id && a.processed_tokens == b.processed_tokens;
               })) {
    return Differs(rank, "how far prompts are");
  }
  if (!AreSame(Others(other.read, own, IdOf<Read>), own.read, [](const Read& a, const Read& b) {
        return a.id == b.id && a.end == b.end && a.num_tokens == b.num_tokens;
      })) {
    return Differs(rank, "which prompts are read");
  }
  if (!SaveTheSame(other.unsaved, own.unsaved)) return Differs(rank, "which blocks are saved");
  return absl::OkStatus();
}

}  // namespace

absl::Status MergeResult(int rank, const CommandResult& other, CommandResult& own) {
  if (!other.refused.ok()) {
    return Differs(
        rank, absl::StrCat("it refuses a command, because ", std::string(other.refused.message()))
                  .c_str());
  }
  const size_t num_own = own.failed.size();
  for (const CommandResult::Failure& failure : other.failed) {
    if (own.FailureOf(failure.id) != nullptr) continue;
    own.failed.push_back({failure.id, OfRank(rank, failure.status)});
  }
  if (own.failed.size() != num_own || other.failed.size() != num_own) {
    own.without_memory = Others(own.without_memory, own, Itself);
    own.finished = Others(own.finished, own, Itself);
    own.progress = Others(own.progress, own, IdOf<CommandResult::Progress>);
    own.read = Others(own.read, own, IdOf<CommandResult::Read>);
    own.measured = Others(own.measured, own, IdOf<CommandResult::Measured>);
  }
  if (own.step.ok() && !other.step.ok()) {
    own.step = OfRank(rank, other.step);
    own.rows.clear();
  }
  return CheckRest(rank, other, own);
}

}  // namespace retroinfer
