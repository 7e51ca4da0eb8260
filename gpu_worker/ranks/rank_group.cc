#include "gpu_worker/ranks/rank_group.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/clock/steady_now.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ranks/result_merge.h"

namespace retroinfer {
namespace {

constexpr absl::Duration kFarewellLimit = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<RankGroup>> RankGroup::Start(std::vector<RankChannel*> channels,
                                                            Options options) {
  auto group = absl::WrapUnique(new RankGroup(std::move(channels), std::move(options)));
  std::vector<int> sockets;
  for (const RankChannel* const channel : group->channels_) sockets.push_back(channel->fd());
  ASSIGN_OR_RETURN(group->watch_,
                   RankWatch::Start(std::move(sockets), group->options_.answer_limit,
                                    [raw = group.get()](size_t index, absl::Status status) {
                                      raw->Lose(index, std::move(status));
                                    }));
  return group;
}

RankGroup::~RankGroup() {
  watch_.reset();  // from now on ranks may go
  if (is_lost_) return;
  absl::MutexLock lock(&send_mutex_);
  for (RankChannel* const channel : channels_) {
    // One that is gone has ended.
    (void)channel->Send(RankMessageType::kEnd, "", kFarewellLimit);
  }
}

CommandHooks RankGroup::Hooks() {
  return {.on_command = [this](const StepCommand& command) { Send(command); },
          .on_result = [this](CommandResult& result) { TakeAnswers(result); }};
}

void RankGroup::Send(const StepCommand& command) {
  if (is_lost_) return;
  absl::StatusOr<std::string> encoded = EncodeCommand(command, Drawing::kElsewhere);
  if (!encoded.ok()) return Lose(0, encoded.status());
  const std::string payload =
      EncodeRankCommand(std::exchange(taken_back_, {}), *std::move(encoded));
  watch_->Begin();
  absl::MutexLock lock(&send_mutex_);
  for (size_t i = 0; i < channels_.size(); ++i) {
    absl::Status status =
        channels_[i]->Send(RankMessageType::kCommand, payload, options_.answer_limit);
    if (!status.ok()) return Lose(i, std::move(status));
  }
}

// What rank 0 has done of it is in `result`.
void RankGroup::TakeAnswers(CommandResult& result) {
  NoteRejected(result);
  for (size_t i = 0; i < channels_.size() && !is_lost_; ++i) {
    watch_->Await(i);
    if (absl::Status status = TakeAnswer(i, result); !status.ok()) Lose(i, std::move(status));
  }
  watch_->End();
  if (!is_lost_) return;
  // Whoever commands ends the requests of the step; the process ends in any case.
  if (result.step.ok()) result.step = absl::UnavailableError("another rank is lost");
  result.rows.clear();
}

absl::Status RankGroup::TakeAnswer(size_t index, CommandResult& result) {
  const int rank = static_cast<int>(index) + 1;
  const absl::Time begun = common::SteadyNow();
  ASSIGN_OR_RETURN(const RankMessage message, channels_[index]->Receive(options_.answer_limit));
  const double waited = absl::ToDoubleSeconds(common::SteadyNow() - begun);
  if (message.type == RankMessageType::kFailure) return DecodeFailure(message.payload);
  if (message.type != RankMessageType::kAnswer) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a message of type ", static_cast<int>(message.type), " in the place of an answer"));
  }
  ASSIGN_OR_RETURN(const RankAnswer answer, DecodeAnswer(message.payload, options_.limits));
  for (const WrittenSegment& written : answer.written) {
    RETURN_IF_ERROR(options_.on_written(rank, written));
  }
  {
    absl::MutexLock lock(&mutex_);
    reports_[index].stats = answer.stats;
    reports_[index].waited_seconds += waited;
  }
  return MergeResult(rank, answer.result, result);
}

// Rows of a sequence are neighbours; those that are rejected come last.
void RankGroup::NoteRejected(const CommandResult& result) {
  for (const CommandResult::Row& row : result.rows) {
    if (!row.is_rejected) continue;
    if (taken_back_.empty() || taken_back_.back().id != row.id) taken_back_.push_back({row.id, 0});
    ++taken_back_.back().num_rows;
  }
}

void RankGroup::RequestSnapshots() {
  absl::MutexLock lock(&send_mutex_);
  for (size_t i = 0; i < channels_.size() && !is_lost_; ++i) {
    absl::Status status = channels_[i]->Send(RankMessageType::kSnapshot, "", options_.answer_limit);
    if (!status.ok()) Lose(i, std::move(status));
  }
}

std::vector<RankGroup::Report> RankGroup::Reports() const {
  absl::MutexLock lock(&mutex_);
  return reports_;
}

void RankGroup::Lose(size_t index, absl::Status status) {
  if (is_lost_.exchange(true)) return;
  options_.on_lost(static_cast<int>(index) + 1, std::move(status));
}

}  // namespace retroinfer
