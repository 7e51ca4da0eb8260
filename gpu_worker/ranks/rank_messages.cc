#include "gpu_worker/ranks/rank_messages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/executor/result_codec.h"
#include "retroinfer/executor/v1/ranks.pb.h"

namespace retroinfer {
namespace {

namespace wire = executor::v1;

constexpr size_t kMaxTextBytes = 4096;
constexpr size_t kMaxPlanBytes = 65536;

template <typename Message>
absl::Status Parse(std::string_view bytes, const char* what, Message* message) {
  if (message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(bytes.size(), " bytes that are no ", what));
}

}  // namespace

std::string EncodeHello(const RankHello& hello) {
  wire::RankHello to;
  to.set_version(hello.version);
  to.set_revision(hello.revision);
  to.set_rank(hello.rank);
  to.set_num_ranks(hello.num_ranks);
  to.set_fingerprint(hello.fingerprint);
  to.set_backend(hello.backend);
  to.set_device_name(hello.device_name);
  to.set_available_bytes(hello.available_bytes);
  to.set_weight_bytes(hello.weight_bytes);
  return to.SerializeAsString();
}

absl::StatusOr<RankHello> DecodeHello(std::string_view bytes) {
  wire::RankHello from;
  RETURN_IF_ERROR(Parse(bytes, "hello of a rank", &from));
  if (from.ByteSizeLong() > kMaxTextBytes) {
    return absl::InvalidArgumentError("a rank's hello is longer than any can be");
  }
  return RankHello{.version = from.version(),
                   .revision = from.revision(),
                   .rank = from.rank(),
                   .num_ranks = from.num_ranks(),
                   .fingerprint = from.fingerprint(),
                   .backend = from.backend(),
                   .device_name = from.device_name(),
                   .available_bytes = from.available_bytes(),
                   .weight_bytes = from.weight_bytes()};
}

std::string EncodeSharedPlan(const SharedPlan& memory) {
  wire::SharedPlan to;
  to.set_available_bytes(memory.available_bytes);
  to.set_weight_bytes(memory.weight_bytes);
  to.set_arena_pages(memory.arena_pages);
  to.set_draft_weight_bytes(memory.draft_weight_bytes);
  return to.SerializeAsString();
}

absl::StatusOr<SharedPlan> DecodeSharedPlan(std::string_view bytes) {
  wire::SharedPlan from;
  RETURN_IF_ERROR(Parse(bytes, "memory of a rank", &from));
  return SharedPlan{.available_bytes = from.available_bytes(),
                    .weight_bytes = from.weight_bytes(),
                    .arena_pages = from.arena_pages(),
                    .draft_weight_bytes = from.draft_weight_bytes()};
}

std::string EncodeReady(std::string_view plan) {
  wire::RankReady to;
  to.set_plan(std::string(plan));
  return to.SerializeAsString();
}

absl::StatusOr<std::string> DecodeReady(std::string_view bytes) {
  wire::RankReady from;
  RETURN_IF_ERROR(Parse(bytes, "plan of a rank", &from));
  if (from.plan().size() > kMaxPlanBytes) {
    return absl::InvalidArgumentError("a rank's plan is longer than any can be");
  }
  return from.plan();
}

std::string EncodeFailure(const absl::Status& status) {
  wire::RankFailure to;
  to.set_code(static_cast<int32_t>(status.code()));
  to.set_message(std::string(status.message()));
  return to.SerializeAsString();
}

absl::Status DecodeFailure(std::string_view bytes) {
  wire::RankFailure from;
  RETURN_IF_ERROR(Parse(bytes, "failure of a rank", &from));
  if (from.code() <= 0 || from.code() > static_cast<int32_t>(absl::StatusCode::kUnauthenticated)) {
    return absl::InvalidArgumentError(absl::StrCat("a rank fails with the code ", from.code()));
  }
  return absl::Status(static_cast<absl::StatusCode>(from.code()),
                      from.message().substr(0, kMaxTextBytes));
}

std::string EncodeRankCommand(const std::vector<TakenBack>& taken_back, std::string command) {
  wire::RankCommand to;
  for (const TakenBack& one : taken_back) {
    wire::TakenBack& added = *to.add_taken_back();
    added.set_id(one.id);
    added.set_num_rows(one.num_rows);
  }
  to.set_command(std::move(command));
  return to.SerializeAsString();
}

absl::StatusOr<RankCommand> DecodeRankCommand(std::string_view bytes, const CodecLimits& limits) {
  wire::RankCommand from;
  RETURN_IF_ERROR(Parse(bytes, "command of a rank", &from));
  if (static_cast<size_t>(from.taken_back_size()) > limits.max_sequences) {
    return absl::InvalidArgumentError(absl::StrCat("rows are taken back of ",
                                                   from.taken_back_size(), " sequences of at most ",
                                                   limits.max_sequences));
  }
  RankCommand command;
  for (const wire::TakenBack& one : from.taken_back()) {
    command.taken_back.push_back({.id = one.id(), .num_rows = one.num_rows()});
  }
  ASSIGN_OR_RETURN(command.command, DecodeCommand(from.command(), limits));
  return command;
}

std::string EncodeAnswer(const RankAnswer& answer) {
  wire::RankAnswer to;
  CommandResult result = answer.result;
  result.rows.clear();
  result.measured.clear();
  for (CommandResult::Read& read : result.read) {
    read.measured.clear();
    if (read.end == CommandResult::Read::End::kPrompt) read.first.token = {.token = 0};
  }
  to.set_result(EncodeResult(result));
  for (const WrittenSegment& one : answer.written) {
    wire::WrittenSegment& added = *to.add_written();
    added.set_holder(one.holder);
    added.set_extent_id(one.extent_id);
  }
  wire::RankStats& stats = *to.mutable_stats();
  stats.set_page_hits(answer.stats.page_hits);
  stats.set_page_misses(answer.stats.page_misses);
  stats.set_page_transients(answer.stats.page_transients);
  stats.set_page_evictions(answer.stats.page_evictions);
  stats.set_arena_bytes_in(answer.stats.arena_bytes_in);
  stats.set_arena_bytes_out(answer.stats.arena_bytes_out);
  stats.set_slots_used(answer.stats.slots_used);
  stats.set_device_bytes(answer.stats.device_bytes);
  return to.SerializeAsString();
}

absl::StatusOr<RankAnswer> DecodeAnswer(std::string_view bytes, const CodecLimits& limits) {
  wire::RankAnswer from;
  RETURN_IF_ERROR(Parse(bytes, "answer of a rank", &from));
  const size_t most = limits.max_sequences * static_cast<size_t>(limits.max_model_len + 1);
  if (static_cast<size_t>(from.written_size()) > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("a rank has written ", from.written_size(), " segments of at most ", most));
  }
  RankAnswer answer;
  ASSIGN_OR_RETURN(answer.result, DecodeResult(from.result(), limits));
  for (const wire::WrittenSegment& one : from.written()) {
    answer.written.push_back({.holder = one.holder(), .extent_id = one.extent_id()});
  }
  const wire::RankStats& stats = from.stats();
  answer.stats = {.page_hits = stats.page_hits(),
                  .page_misses = stats.page_misses(),
                  .page_transients = stats.page_transients(),
                  .page_evictions = stats.page_evictions(),
                  .arena_bytes_in = stats.arena_bytes_in(),
                  .arena_bytes_out = stats.arena_bytes_out(),
                  .slots_used = stats.slots_used(),
                  .device_bytes = stats.device_bytes()};
  return answer;
}

}  // namespace retroinfer
