#include "gpu_worker/executor/result_codec.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "retroinfer/executor/v1/step.pb.h"

namespace retroinfer {
namespace {

namespace wire = executor::v1;

constexpr int kMaxAlternatives = 20;

absl::Status Wrong(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("a result with ", what));
}

// --- Encoding

void Put(const absl::Status& from, wire::Status& to) {
  to.set_code(static_cast<int32_t>(from.code()));
  to.set_message(std::string(from.message()));
}

void Put(const OutputToken& from, wire::Token& to) {
  to.set_token(from.token);
  to.set_logprob(from.logprob);
  for (const TokenLogprob& alternative : from.alternatives) {
    wire::TokenLogprob& one = *to.add_alternatives();
    one.set_token(alternative.token);
    one.set_logprob(alternative.logprob);
  }
  to.set_rank(from.rank);
}

void Put(const DrawnToken& from, wire::Drawn& to) {
  Put(from.token, *to.mutable_token());
  Put(from.allowed, *to.mutable_allowed());
  to.set_must_end(from.must_end);
}

void Put(const CommandResult::Failure& from, wire::Failure& to) {
  to.set_id(from.id);
  Put(from.status, *to.mutable_status());
}

void Put(const CommandResult::Progress& from, wire::Progress& to) {
  to.set_id(from.id);
  to.set_processed_tokens(from.processed_tokens);
}

void Put(const CommandResult::Read& from, wire::Read& to) {
  to.set_id(from.id);
  to.set_end(static_cast<uint32_t>(from.end));
  to.set_num_tokens(from.num_tokens);
  if (from.end == CommandResult::Read::End::kPrompt && from.measured.empty()) {
    Put(from.first, *to.mutable_first());
  }
  for (const OutputToken& token : from.measured) Put(token, *to.add_measured());
}

void Put(const CommandResult::Measured& from, wire::Measured& to) {
  to.set_id(from.id);
  for (const OutputToken& token : from.tokens) Put(token, *to.add_tokens());
}

void Put(const CommandResult::Row& from, wire::RowResult& to) {
  to.set_id(from.id);
  if (!from.is_given && !from.is_unread) Put(from.drawn, *to.mutable_drawn());
  to.set_bytes_read(from.bytes.read);
  to.set_bytes_full(from.bytes.full);
  if (from.unseen.has_value()) to.set_unseen(*from.unseen);
  to.set_is_rejected(from.is_rejected);
  to.set_is_given(from.is_given);
  to.set_is_unread(from.is_unread);
}

template <typename From, typename To>
void PutAll(const std::vector<From>& from, google::protobuf::RepeatedPtrField<To>* to) {
  for (const From& one : from) Put(one, *to->Add());
}

// --- Decoding

class ResultDecoder {
 public:
  explicit ResultDecoder(const CodecLimits& limits) : limits_(limits) {}

  absl::Status Get(const wire::CommandResult& from, CommandResult& to) const;

 private:
  absl::Status Get(const wire::Status& from, absl::Status& to) const;
  absl::Status Get(const wire::Token& from, OutputToken& to) const;
  absl::Status Get(const wire::Drawn& from, DrawnToken& to) const;
  absl::Status Get(const wire::Failure& from, CommandResult::Failure& to) const;
  absl::Status Get(const wire::Progress& from, CommandResult::Progress& to) const;
  absl::Status Get(const wire::Read& from, CommandResult::Read& to) const;
  absl::Status Get(const wire::Measured& from, CommandResult::Measured& to) const;
  absl::Status Get(const wire::RowResult& from, CommandResult::Row& to) const;

  absl::Status CheckToken(int32_t token) const {
    if (token >= 0 && token < limits_.vocab_size) return absl::OkStatus();
    return Wrong(absl::StrCat("token ", token, " of a vocabulary of ", limits_.vocab_size));
  }
  absl::Status CheckTokens(int64_t tokens) const {
    if (tokens >= 0 && tokens <= limits_.max_model_len) return absl::OkStatus();
    return Wrong(absl::StrCat(tokens, " tokens of at most ", limits_.max_model_len));
  }
  absl::Status GetIds(const google::protobuf::RepeatedField<uint64_t>& from,
                      std::vector<uint64_t>& to) const;
  template <typename From, typename To>
  absl::Status GetAll(const google::protobuf::RepeatedPtrField<From>& from, size_t most,
                      std::vector<To>& to) const {
    if (static_cast<size_t>(from.size()) > most) {
      return Wrong(absl::StrCat("a list of ", from.size(), " of at most ", most));
    }
    for (const From& one : from) RETURN_IF_ERROR(Get(one, to.emplace_back()));
    return absl::OkStatus();
  }

  const CodecLimits& limits_;
};

absl::Status ResultDecoder::GetIds(const google::protobuf::RepeatedField<uint64_t>& from,
                                   std::vector<uint64_t>& to) const {
  if (static_cast<size_t>(from.size()) > limits_.max_sequences) {
    return Wrong(absl::StrCat(from.size(), " sequences of at most ", limits_.max_sequences));
  }
  to.assign(from.begin(), from.end());
  return absl::OkStatus();
}

absl::Status ResultDecoder::Get(const wire::Status& from, absl::Status& to) const {
  if (from.code() < 0 || from.code() > static_cast<int32_t>(absl::StatusCode::kUnauthenticated)) {
    return Wrong(absl::StrCat("the status code ", from.code()));
  }
  to = absl::Status(static_cast<absl::StatusCode>(from.code()), from.message());
  return absl::OkStatus();
}

absl::Status ResultDecoder::Get(const wire::Token& from, OutputToken& to) const {
  RETURN_IF_ERROR(CheckToken(from.token()));
  if (from.alternatives_size() > kMaxAlternatives || from.rank() < 0) {
    return Wrong(absl::StrCat(from.alternatives_size(), " alternatives, rank ", from.rank()));
  }
  to.token = from.token();
  to.logprob = from.logprob();
  for (const wire::TokenLogprob& alternative : from.alternatives()) {
    RETURN_IF_ERROR(CheckToken(alternative.token()));
    to.alternatives.push_back({alternative.token(), alternative.logprob()});
  }
  to.rank = from.rank();
  return absl::OkStatus();
}

absl::Status ResultDecoder::Get(const wire::Drawn& from, DrawnToken& to) const {
  RETURN_IF_ERROR(Get(from.token(), to.token));
  RETURN_IF_ERROR(Get(from.allowed(), to.allowed));
  to.must_end = from.must_end();
  return absl::OkStatus();
}

absl::Status ResultDecoder::Get(const wire::Failure& from, CommandResult::Failure& to) const {
  to.id = from.id();
  RETURN_IF_ERROR(Get(from.status(), to.status));
  return to.status.ok() ? Wrong("a failure that is none") : absl::OkStatus();
}

absl::Status ResultDecoder::Get(const wire::Progress& from, CommandResult::Progress& to) const {
  RETURN_IF_ERROR(CheckTokens(from.processed_tokens()));
  to = {.id = from.id(), .processed_tokens = from.processed_tokens()};
  return absl::OkStatus();
}

absl::Status ResultDecoder::Get(const wire::Read& from, CommandResult::Read& to) const {
  RETURN_IF_ERROR(CheckTokens(from.num_tokens()));
  if (from.end() > static_cast<uint32_t>(CommandResult::Read::End::kHead)) {
    return Wrong(absl::StrCat("the end ", from.end(), " of a part"));
  }
  to.id = from.id();
  to.end = static_cast<CommandResult::Read::End>(from.end());
  to.num_tokens = from.num_tokens();
  const bool is_prompt = to.end == CommandResult::Read::End::kPrompt;
  if (is_prompt != (from.has_first() || from.measured_size() > 0)) {
    return Wrong("tokens behind a part, or none behind a prompt");
  }
  if (from.has_first()) RETURN_IF_ERROR(Get(from.first(), to.first));
  return GetAll(from.measured(), static_cast<size_t>(limits_.max_model_len), to.measured);
}

absl::Status ResultDecoder::Get(const wire::Measured& from, CommandResult::Measured& to) const {
  to.id = from.id();
  return GetAll(from.tokens(), static_cast<size_t>(limits_.max_model_len), to.tokens);
}

absl::Status ResultDecoder::Get(const wire::RowResult& from, CommandResult::Row& to) const {
  to.id = from.id();
  const bool draws = !from.is_given() && !from.is_unread();
  if (draws != from.has_drawn()) return Wrong("what a given token draws");
  if (draws) RETURN_IF_ERROR(Get(from.drawn(), to.drawn));
  const bool are_bytes = from.bytes_read() >= 0 && from.bytes_full() >= 0 &&
                         std::isfinite(from.bytes_read()) && std::isfinite(from.bytes_full());
  const bool is_share = !from.has_unseen() || (from.unseen() >= 0 && from.unseen() <= 1);
  if (!are_bytes || !is_share) return Wrong("what no step can have read");
  to.bytes = {.read = from.bytes_read(), .full = from.bytes_full()};
  if (from.has_unseen()) to.unseen = from.unseen();
  to.is_rejected = from.is_rejected();
  to.is_given = from.is_given();
  to.is_unread = from.is_unread();
  return absl::OkStatus();
}

absl::Status ResultDecoder::Get(const wire::CommandResult& from, CommandResult& to) const {
  const size_t most = limits_.max_sequences;
  RETURN_IF_ERROR(Get(from.refused(), to.refused));
  RETURN_IF_ERROR(GetIds(from.without_memory(), to.without_memory));
  RETURN_IF_ERROR(GetAll(from.failed(), most, to.failed));
  RETURN_IF_ERROR(GetAll(from.progress(), most, to.progress));
  RETURN_IF_ERROR(GetAll(from.read(), most, to.read));
  RETURN_IF_ERROR(GetAll(from.measured(), most, to.measured));
  RETURN_IF_ERROR(GetIds(from.finished(), to.finished));
  RETURN_IF_ERROR(GetAll(from.unsaved(), most, to.unsaved));
  RETURN_IF_ERROR(GetAll(from.rows(), most, to.rows));
  return Get(from.step(), to.step);
}

}  // namespace

std::string EncodeResult(const CommandResult& result) {
  wire::CommandResult to;
  Put(result.refused, *to.mutable_refused());
  to.mutable_without_memory()->Assign(result.without_memory.begin(), result.without_memory.end());
  PutAll(result.failed, to.mutable_failed());
  PutAll(result.progress, to.mutable_progress());
  PutAll(result.read, to.mutable_read());
  PutAll(result.measured, to.mutable_measured());
  to.mutable_finished()->Assign(result.finished.begin(), result.finished.end());
  PutAll(result.unsaved, to.mutable_unsaved());
  PutAll(result.rows, to.mutable_rows());
  Put(result.step, *to.mutable_step());
  return to.SerializeAsString();
}

absl::StatusOr<CommandResult> DecodeResult(std::string_view bytes, const CodecLimits& limits) {
  wire::CommandResult from;
  if (bytes.size() > limits.max_bytes ||
      !from.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Wrong(absl::StrCat(bytes.size(), " bytes that are none"));
  }
  CommandResult result;
  RETURN_IF_ERROR(ResultDecoder(limits).Get(from, result));
  return result;
}

}  // namespace retroinfer
