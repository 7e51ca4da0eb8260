#include "gpu_worker/executor/command_codec.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "retroinfer/executor/v1/step.pb.h"

namespace retroinfer {
namespace {

namespace wire = executor::v1;

// The limits of ValidateSampling(): what a client may ask for.
constexpr int kMaxStopTokens = 64;  // with those of the model
constexpr int kMaxBiases = 1024;
constexpr int kMaxLogprobs = 20;
constexpr int64_t kMaxBlocks = int64_t{1} << 30;

// Of executors whose draws mean nothing: what takes the least.
const SamplingParams kGreedy{.temperature = 0, .max_tokens = 1, .ignore_eos = true};

absl::Status Wrong(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("a command with ", what));
}

// --- Encoding

void Put(const AttentionSettings& from, wire::Attention& to) {
  to.set_policy(static_cast<uint32_t>(from.policy));
  to.set_retrieval_ratio(from.retrieval_ratio);
  to.set_estimation_ratio(from.estimation_ratio);
  to.set_ranking(static_cast<int32_t>(from.ranking));
  to.set_max_unseen_mass(from.max_unseen_mass);
  to.set_streaming_window(from.streaming_window);
  to.set_prefill(static_cast<uint32_t>(from.prefill));
  to.set_tail_run(from.tail_run);
}

void Put(const SamplingParams& from, wire::Sampling& to) {
  to.set_temperature(from.temperature);
  to.set_top_p(from.top_p);
  to.set_top_k(from.top_k);
  to.set_min_p(from.min_p);
  to.set_repetition_penalty(from.repetition_penalty);
  to.set_frequency_penalty(from.frequency_penalty);
  to.set_presence_penalty(from.presence_penalty);
  to.set_max_tokens(from.max_tokens);
  to.set_min_tokens(from.min_tokens);
  to.mutable_stop_token_ids()->Assign(from.stop_token_ids.begin(), from.stop_token_ids.end());
  to.set_ignore_eos(from.ignore_eos);
  to.set_seed(from.seed);
  to.set_num_logprobs(from.num_logprobs);
  for (const auto& [token, bias] : from.logit_bias) {
    wire::Bias& one = *to.add_logit_bias();
    one.set_token(token);
    one.set_bias(bias);
  }
}

void Put(const Extent& from, wire::Extent& to) {
  to.set_id(from.id);
  to.set_first_page(from.first_page);
  to.set_num_pages(from.num_pages);
  to.set_num_tokens(from.num_tokens);
  to.set_part_bytes(from.part_bytes);
  to.set_cached(from.cached);
  if (from.generated.has_value()) to.set_generated(std::string(from.generated->view()));
}

void Put(const CachedRun& from, wire::CachedRun& to) {
  Put(from.extent, *to.mutable_extent());
  to.set_name(std::string(from.name.view()));
  to.set_token_begin(from.token_begin);
}

void Put(const StepCommand::Open& from, const SamplingParams& sampling, wire::Open& to) {
  to.set_id(from.id);
  to.mutable_prompt()->Assign(from.prompt.begin(), from.prompt.end());
  to.set_given_tokens(from.given_tokens);
  to.set_total_tokens(from.total_tokens);
  Put(from.attention, *to.mutable_attention());
  Put(sampling, *to.mutable_sampling());
  to.mutable_eos_token_ids()->Assign(from.eos_token_ids.begin(), from.eos_token_ids.end());
  to.set_is_prompt_only(from.is_prompt_only);
  to.set_num_prompt_logprobs(from.num_prompt_logprobs);
  to.mutable_first_targets()->Assign(from.first_targets.begin(), from.first_targets.end());
}

void Put(const StepCommand::Blocks& from, wire::Blocks& to) {
  to.set_id(from.id);
  to.set_dense(from.blocks.dense);
  to.set_meta(from.blocks.meta);
}

void Put(const StepCommand::Claim& from, wire::Claim& to) {
  to.set_id(from.id);
  for (const Extent& extent : from.extents) Put(extent, *to.add_extents());
  to.set_num_cached_segments(static_cast<uint32_t>(from.num_cached_segments));
  for (const CachedRun& run : from.cached) Put(run, *to.add_cached());
}

void Put(const StepCommand::Lengthening& from, wire::Lengthening& to) {
  to.set_id(from.id);
  to.set_total_tokens(from.total_tokens);
  for (const Extent& extent : from.extents) Put(extent, *to.add_extents());
  for (const SequenceKv::Growth& growth : from.growths) {
    wire::Growth& one = *to.add_growths();
    one.set_first(growth.first);
    one.set_holder(growth.holder);
  }
}

void Put(const StepCommand::Group& from, wire::Group& to) {
  to.set_lane(static_cast<uint32_t>(from.lane));
  to.mutable_members()->Assign(from.members.begin(), from.members.end());
}

void Put(const StepCommand::Pass& from, wire::Pass& to) {
  to.set_lane(static_cast<uint32_t>(from.lane));
  to.set_layer(from.layer);
  to.set_first_row(from.first_row);
  to.set_num_rows(from.num_rows);
}

void Put(const StepCommand::Measure& from, wire::Measure& to) {
  to.set_lane(static_cast<uint32_t>(from.lane));
  to.set_num_rows(from.num_rows);
}

void Put(const StepCommand::Save& from, wire::Save& to) {
  to.set_id(from.id);
  to.set_save_id(from.save_id);
  for (const BlockCopier::Block& block : from.blocks) {
    wire::SavedBlock& one = *to.add_blocks();
    one.set_token_begin(block.token_begin);
    one.set_num_tokens(block.num_tokens);
    Put(block.extent, *one.mutable_extent());
  }
}

void Put(const StepCommand::Row& from, wire::Row& to) {
  to.set_id(from.id);
  to.set_token(from.token);
  to.set_position(from.position);
  to.set_target(from.target);
}

template <typename From, typename To>
void PutAll(const std::vector<From>& from, google::protobuf::RepeatedPtrField<To>* to) {
  for (const From& one : from) Put(one, *to->Add());
}

void PutIds(const std::vector<uint64_t>& from, google::protobuf::RepeatedField<uint64_t>* to) {
  to->Assign(from.begin(), from.end());
}

// --- Decoding

class CommandDecoder {
 public:
  explicit CommandDecoder(const CodecLimits& limits) : limits_(limits) {}

  absl::Status Get(const wire::StepCommand& from, StepCommand& to) const;

 private:
  absl::Status Get(const wire::Attention& from, AttentionSettings& to) const;
  absl::Status Get(const wire::Sampling& from, SamplingParams& to) const;
  absl::Status Get(const wire::Extent& from, Extent& to) const;
  absl::Status Get(const wire::CachedRun& from, CachedRun& to) const;
  absl::Status Get(const wire::Open& from, StepCommand::Open& to) const;
  absl::Status Get(const wire::Blocks& from, StepCommand::Blocks& to) const;
  absl::Status Get(const wire::Claim& from, StepCommand::Claim& to) const;
  absl::Status Get(const wire::Growth& from, SequenceKv::Growth& to) const;
  absl::Status Get(const wire::Lengthening& from, StepCommand::Lengthening& to) const;
  absl::Status Get(const wire::Group& from, StepCommand::Group& to) const;
  absl::Status Get(const wire::Pass& from, StepCommand::Pass& to) const;
  absl::Status Get(const wire::Measure& from, StepCommand::Measure& to) const;
  absl::Status Get(const wire::SavedBlock& from, BlockCopier::Block& to) const;
  absl::Status Get(const wire::Save& from, StepCommand::Save& to) const;
  absl::Status Get(const wire::Row& from, StepCommand::Row& to) const;

  absl::Status GetTokens(const google::protobuf::RepeatedField<int32_t>& from, int64_t most,
                         std::vector<int32_t>& to) const;
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
  // Segments, or pieces of 64 tokens, of the longest sequence.
  size_t max_pieces() const { return static_cast<size_t>(limits_.max_model_len) + 1; }

  const CodecLimits& limits_;
};

bool IsShare(double value) { return value >= 0 && value <= 1; }

absl::Status CommandDecoder::Get(const wire::Attention& from, AttentionSettings& to) const {
  const bool is_known = from.policy() < kNumPolicies && from.prefill() < std::size(kPrefillNames) &&
                        (from.ranking() == static_cast<int32_t>(GroupRanking::kSumOfSoftmax) ||
                         from.ranking() == static_cast<int32_t>(GroupRanking::kMaxOfSoftmax));
  // Not a number is no share.
  const bool is_valid =
      is_known && IsShare(from.retrieval_ratio()) && IsShare(from.estimation_ratio()) &&
      IsShare(from.max_unseen_mass()) && from.streaming_window() >= kMinStreamingWindow &&
      from.streaming_window() <= kMaxStreamingWindow && IsTailRun(from.tail_run());
  if (!is_valid) return Wrong("attention settings that cannot be");
  to = {.policy = static_cast<PolicyKind>(from.policy()),
        .prefill = static_cast<PrefillKind>(from.prefill()),
        .tail_run = from.tail_run(),
        .retrieval_ratio = from.retrieval_ratio(),
        .estimation_ratio = from.estimation_ratio(),
        .ranking = static_cast<GroupRanking>(from.ranking()),
        .max_unseen_mass = from.max_unseen_mass(),
        .streaming_window = from.streaming_window()};
  return absl::OkStatus();
}

absl::Status CommandDecoder::Get(const wire::Sampling& from, SamplingParams& to) const {
  const auto is_penalty = [](float value) { return value >= -2 && value <= 2; };
  const bool is_valid = from.temperature() >= 0 && std::isfinite(from.temperature()) &&
                        IsShare(from.top_p()) && from.top_p() > 0 && from.top_k() >= 0 &&
                        IsShare(from.min_p()) && from.repetition_penalty() > 0 &&
                        from.repetition_penalty() <= 10 && is_penalty(from.frequency_penalty()) &&
                        is_penalty(from.presence_penalty()) && from.min_tokens() >= 0 &&
                        from.max_tokens() >= 0 && from.num_logprobs() >= -1 &&
                        from.num_logprobs() <= kMaxLogprobs && from.logit_bias_size() <= kMaxBiases;
  if (!is_valid) return Wrong("sampling settings that cannot be");
  to.temperature = from.temperature();
  to.top_p = from.top_p();
  to.top_k = from.top_k();
  to.min_p = from.min_p();
  to.repetition_penalty = from.repetition_penalty();
  to.frequency_penalty = from.frequency_penalty();
  to.presence_penalty = from.presence_penalty();
  to.max_tokens = from.max_tokens();
  to.min_tokens = from.min_tokens();
  RETURN_IF_ERROR(GetTokens(from.stop_token_ids(), kMaxStopTokens, to.stop_token_ids));
  to.ignore_eos = from.ignore_eos();
  to.seed = from.seed();
  to.num_logprobs = from.num_logprobs();
  for (const wire::Bias& bias : from.logit_bias()) {
    const bool is_bias = bias.token() >= 0 && bias.token() < limits_.vocab_size &&
                         bias.bias() >= -100 && bias.bias() <= 100;
    if (!is_bias || !to.logit_bias.emplace(bias.token(), bias.bias()).second) {
      return Wrong(absl::StrCat("the bias ", bias.bias(), " of token ", bias.token()));
    }
  }
  return absl::OkStatus();
}

absl::Status CommandDecoder::GetTokens(const google::protobuf::RepeatedField<int32_t>& from,
                                       int64_t most, std::vector<int32_t>& to) const {
  if (from.size() > most) return Wrong(absl::StrCat(from.size(), " tokens of at most ", most));
  for (const int32_t token : from) {
    if (token < 0 || token >= limits_.vocab_size) {
      return Wrong(absl::StrCat("token ", token, " of a vocabulary of ", limits_.vocab_size));
    }
  }
  to.assign(from.begin(), from.end());
  return absl::OkStatus();
}

absl::Status CommandDecoder::GetIds(const google::protobuf::RepeatedField<uint64_t>& from,
                                    std::vector<uint64_t>& to) const {
  if (static_cast<size_t>(from.size()) > limits_.max_sequences) {
    return Wrong(absl::StrCat(from.size(), " sequences of at most ", limits_.max_sequences));
  }
  to.assign(from.begin(), from.end());
  return absl::OkStatus();
}

absl::Status CommandDecoder::Get(const wire::Extent& from, Extent& to) const {
  to = {.id = from.id(),
        .first_page = from.first_page(),
        .num_pages = from.num_pages(),
        .num_tokens = from.num_tokens(),
        .cached = from.cached(),
        .part_bytes = from.part_bytes()};
  if (!from.has_generated()) return absl::OkStatus();
  ASSIGN_OR_RETURN(to.generated, common::Hash256::FromBytes(from.generated()));
  return absl::OkStatus();
}

absl::Status CommandDecoder::Get(const wire::CachedRun& from, CachedRun& to) const {
  RETURN_IF_ERROR(Get(from.extent(), to.extent));
  ASSIGN_OR_RETURN(to.name, common::Hash256::FromBytes(from.name()));
  if (from.token_begin() < 0 || from.token_begin() > limits_.max_model_len) {
    return Wrong(absl::StrCat("cached tokens at ", from.token_begin()));
  }
  to.token_begin = from.token_begin();
  return absl::OkStatus();
}

absl::Status CommandDecoder::Get(const wire::Open& from, StepCommand::Open& to) const {
  to.id = from.id();
  RETURN_IF_ERROR(GetTokens(from.prompt(), limits_.max_model_len, to.prompt));
  if (from.total_tokens() < from.prompt_size() || from.total_tokens() > limits_.max_model_len ||
      from.prompt_size() == 0) {
    return Wrong(absl::StrCat("a prompt of ", from.prompt_size(), " tokens of ",
                              from.total_tokens(), " of at most ", limits_.max_model_len));
  }
  if (from.given_tokens() < 0 || from.given_tokens() >= from.prompt_size()) {
    return Wrong(
        absl::StrCat(from.given_tokens(), " given tokens of a prompt of ", from.prompt_size()));
  }
  to.given_tokens = from.given_tokens();
  to.total_tokens = from.total_tokens();
  RETURN_IF_ERROR(Get(from.attention(), to.attention));
  RETURN_IF_ERROR(Get(from.sampling(), to.sampling));
  RETURN_IF_ERROR(GetTokens(from.eos_token_ids(), kMaxStopTokens, to.eos_token_ids));
  to.is_prompt_only = from.is_prompt_only();
  if (from.num_prompt_logprobs() < -1 || from.num_prompt_logprobs() > kMaxLogprobs) {
    return Wrong(absl::StrCat(from.num_prompt_logprobs(), " alternatives of a token"));
  }
  to.num_prompt_logprobs = from.num_prompt_logprobs();
  return GetTokens(from.first_targets(), limits_.max_model_len, to.first_targets);
}

absl::Status CommandDecoder::Get(const wire::Blocks& from, StepCommand::Blocks& to) const {
  if (from.dense() < 0 || from.meta() < 0 || from.dense() > kMaxBlocks ||
      from.meta() > kMaxBlocks) {
    return Wrong(absl::StrCat(from.dense(), " and ", from.meta(), " blocks"));
  }
  to = {from.id(), {.dense = from.dense(), .meta = from.meta()}};
  return absl::OkStatus();
}

absl::Status CommandDecoder::Get(const wire::Claim& from, StepCommand::Claim& to) const {
  to.id = from.id();
  to.num_cached_segments = from.num_cached_segments();
  RETURN_IF_ERROR(GetAll(from.extents(), max_pieces(), to.extents));
  return GetAll(from.cached(), max_pieces(), to.cached);
}

absl::Status CommandDecoder::Get(const wire::Growth& from, SequenceKv::Growth& to) const {
  if (from.first() > max_pieces()) return Wrong(absl::StrCat("an extent ", from.first()));
  to = {.first = from.first(), .holder = from.holder()};
  return absl::OkStatus();
}

absl::Status CommandDecoder::Get(const wire::Lengthening& from,
                                 StepCommand::Lengthening& to) const {
  to.id = from.id();
  if (from.total_tokens() < 0 || from.total_tokens() > limits_.max_model_len) {
    return Wrong(absl::StrCat("a length of ", from.total_tokens()));
  }
  to.total_tokens = from.total_tokens();
  RETURN_IF_ERROR(GetAll(from.extents(), max_pieces(), to.extents));
  return GetAll(from.growths(), max_pieces(), to.growths);
}

absl::Status CommandDecoder::Get(const wire::Group& from, StepCommand::Group& to) const {
  to.lane = from.lane();
  return GetIds(from.members(), to.members);
}

absl::Status CommandDecoder::Get(const wire::Pass& from, StepCommand::Pass& to) const {
  if (from.first_row() < 0 || from.num_rows() < 1) return Wrong("a pass without rows");
  to.lane = from.lane();
  to.layer = from.layer();
  to.first_row = from.first_row();
  to.num_rows = from.num_rows();
  return absl::OkStatus();
}

absl::Status CommandDecoder::Get(const wire::Measure& from, StepCommand::Measure& to) const {
  if (from.num_rows() < 1) return Wrong("no rows to measure");
  to = {.lane = from.lane(), .num_rows = from.num_rows()};
  return absl::OkStatus();
}

absl::Status CommandDecoder::Get(const wire::SavedBlock& from, BlockCopier::Block& to) const {
  if (from.token_begin() < 0 || from.token_begin() > limits_.max_model_len) {
    return Wrong(absl::StrCat("a block at ", from.token_begin()));
  }
  to.token_begin = from.token_begin();
  to.num_tokens = from.num_tokens();
  return Get(from.extent(), to.extent);
}

absl::Status CommandDecoder::Get(const wire::Save& from, StepCommand::Save& to) const {
  to.id = from.id();
  to.save_id = from.save_id();
  return GetAll(from.blocks(), max_pieces(), to.blocks);
}

absl::Status CommandDecoder::Get(const wire::Row& from, StepCommand::Row& to) const {
  const auto is_token = [this](int32_t token) { return token >= 0 && token < limits_.vocab_size; };
  if (!is_token(from.token()) || (from.target() != -1 && !is_token(from.target()))) {
    return Wrong(absl::StrCat("a row of token ", from.token(), ", target ", from.target()));
  }
  to = {
      .id = from.id(), .token = from.token(), .position = from.position(), .target = from.target()};
  return absl::OkStatus();
}

absl::Status CommandDecoder::Get(const wire::StepCommand& from, StepCommand& to) const {
  const size_t most = limits_.max_sequences;
  RETURN_IF_ERROR(GetAll(from.open(), most, to.open));
  RETURN_IF_ERROR(GetIds(from.drop(), to.drop));
  RETURN_IF_ERROR(GetIds(from.let_go(), to.let_go));
  RETURN_IF_ERROR(GetAll(from.claim(), most, to.claim));
  RETURN_IF_ERROR(GetIds(from.put_back(), to.put_back));
  RETURN_IF_ERROR(GetIds(from.leave(), to.leave));
  RETURN_IF_ERROR(GetIds(from.rejoin(), to.rejoin));
  RETURN_IF_ERROR(GetIds(from.rewind(), to.rewind));
  RETURN_IF_ERROR(GetAll(from.give_back(), most, to.give_back));
  RETURN_IF_ERROR(GetAll(from.lengthen(), most, to.lengthen));
  RETURN_IF_ERROR(GetIds(from.suspend(), to.suspend));
  RETURN_IF_ERROR(GetAll(from.grow(), most, to.grow));
  RETURN_IF_ERROR(GetAll(from.resume(), most, to.resume));
  RETURN_IF_ERROR(GetAll(from.admit(), most, to.admit));
  RETURN_IF_ERROR(GetAll(from.begin(), most, to.begin));
  RETURN_IF_ERROR(GetAll(from.passes(), most, to.passes));
  RETURN_IF_ERROR(GetAll(from.measure(), most, to.measure));
  RETURN_IF_ERROR(GetIds(from.finish(), to.finish));
  RETURN_IF_ERROR(GetAll(from.save(), most, to.save));
  RETURN_IF_ERROR(GetIds(from.end_save(), to.end_save));
  return GetAll(from.rows(), most, to.rows);
}

}  // namespace

absl::StatusOr<std::string> EncodeCommand(const StepCommand& command, Drawing drawing) {
  wire::StepCommand to;
  for (const StepCommand::Open& open : command.open) {
    if (drawing == Drawing::kElsewhere) {
      Put(open, kGreedy, *to.add_open());
      continue;
    }
    if (open.sampling.constraint != nullptr) {
      return absl::UnimplementedError("a constraint is followed where tokens are drawn alone");
    }
    Put(open, open.sampling, *to.add_open());
  }
  PutIds(command.drop, to.mutable_drop());
  PutIds(command.let_go, to.mutable_let_go());
  PutAll(command.claim, to.mutable_claim());
  PutIds(command.put_back, to.mutable_put_back());
  PutIds(command.leave, to.mutable_leave());
  PutIds(command.rejoin, to.mutable_rejoin());
  PutIds(command.rewind, to.mutable_rewind());
  PutAll(command.give_back, to.mutable_give_back());
  PutAll(command.lengthen, to.mutable_lengthen());
  PutIds(command.suspend, to.mutable_suspend());
  PutAll(command.grow, to.mutable_grow());
  PutAll(command.resume, to.mutable_resume());
  PutAll(command.admit, to.mutable_admit());
  PutAll(command.begin, to.mutable_begin());
  PutAll(command.passes, to.mutable_passes());
  PutAll(command.measure, to.mutable_measure());
  PutIds(command.finish, to.mutable_finish());
  PutAll(command.save, to.mutable_save());
  PutIds(command.end_save, to.mutable_end_save());
  PutAll(command.rows, to.mutable_rows());
  return to.SerializeAsString();
}

absl::StatusOr<StepCommand> DecodeCommand(std::string_view bytes, const CodecLimits& limits) {
  wire::StepCommand from;
  if (bytes.size() > limits.max_bytes ||
      !from.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Wrong(absl::StrCat(bytes.size(), " bytes that are no command"));
  }
  StepCommand command;
  RETURN_IF_ERROR(CommandDecoder(limits).Get(from, command));
  return command;
}

}  // namespace retroinfer
