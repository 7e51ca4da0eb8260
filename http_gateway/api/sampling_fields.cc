#include "http_gateway/api/sampling_fields.h"

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/policy_name.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/stable_prompt.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr size_t kContextNameMax = 128;
constexpr double kTimeoutSecondsMax = 30 * 24 * 3600.0;

using SetFloat = void (v1::SamplingOptions::*)(float);

absl::Status ReadFloat(Fields& fields, const char* name, v1::SamplingOptions* sampling,
                       SetFloat set) {
  std::optional<double> value;
  RETURN_IF_ERROR(fields.Read(name, &value));
  // What a float cannot hold would be infinite; the worker's ranges are narrower by far.
  if (value.has_value() && std::fabs(*value) > 1e30) {
    return ParamError(fields.PathOf(name), absl::StrCat(fields.PathOf(name), " is out of range"));
  }
  if (value.has_value()) (sampling->*set)(static_cast<float>(*value));
  return absl::OkStatus();
}

absl::Status ReadStop(Fields& fields, v1::SamplingOptions* sampling) {
  const Json* const stop = fields.Find("stop");
  if (stop == nullptr) return absl::OkStatus();
  if (stop->is_string()) {
    sampling->add_stop(stop->get<std::string>());
    return absl::OkStatus();
  }
  const auto wrong =
      ParamError("stop", "stop must be a string or a list of strings", "INVALID_TYPE");
  if (!stop->is_array()) return wrong;
  for (const Json& item : *stop) {
    if (!item.is_string()) return wrong;
    sampling->add_stop(item.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadLogitBias(Fields& fields, v1::SamplingOptions* sampling) {
  const Json* const bias = fields.Find("logit_bias");
  if (bias == nullptr) return absl::OkStatus();
  if (!bias->is_object()) {
    return ParamError("logit_bias", "logit_bias must be an object of token ids and numbers",
                      "INVALID_TYPE");
  }
  for (const auto& [name, value] : bias->items()) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(name, &id) || id < 0 || !value.is_number() ||
        std::fabs(value.get<double>()) > 1000) {
      return ParamError("logit_bias",
                        "logit_bias must have token ids as keys and numbers in [-100, 100]");
    }
    (*sampling->mutable_logit_bias())[id] = value.get<float>();
  }
  return absl::OkStatus();
}

absl::Status ReadNumbers(Fields& fields, v1::SamplingOptions* sampling) {
  RETURN_IF_ERROR(
      ReadFloat(fields, "temperature", sampling, &v1::SamplingOptions::set_temperature));
  RETURN_IF_ERROR(ReadFloat(fields, "top_p", sampling, &v1::SamplingOptions::set_top_p));
  RETURN_IF_ERROR(ReadFloat(fields, "min_p", sampling, &v1::SamplingOptions::set_min_p));
  RETURN_IF_ERROR(ReadFloat(fields, "repetition_penalty", sampling,
                            &v1::SamplingOptions::set_repetition_penalty));
  RETURN_IF_ERROR(ReadFloat(fields, "frequency_penalty", sampling,
                            &v1::SamplingOptions::set_frequency_penalty));
  RETURN_IF_ERROR(
      ReadFloat(fields, "presence_penalty", sampling, &v1::SamplingOptions::set_presence_penalty));
  std::optional<int64_t> value;
  RETURN_IF_ERROR(fields.Read("top_k", &value, -1, kInt32Max));  // -1: off, to those who say so
  if (value.has_value()) sampling->set_top_k(static_cast<int32_t>(std::max<int64_t>(*value, 0)));
  value.reset();
  RETURN_IF_ERROR(fields.Read("min_tokens", &value, 0, kInt32Max));
  if (value.has_value()) sampling->set_min_tokens(static_cast<int32_t>(*value));
  value.reset();
  RETURN_IF_ERROR(fields.Read("n", &value, 1, 16));
  if (value.has_value()) sampling->set_n(static_cast<int32_t>(*value));
  value.reset();
  RETURN_IF_ERROR(fields.Read("seed", &value, std::numeric_limits<int64_t>::min(),
                              std::numeric_limits<int64_t>::max()));
  if (value.has_value()) sampling->set_seed(static_cast<uint64_t>(*value));
  return absl::OkStatus();
}

using SetBool = void (v1::SamplingOptions::*)(bool);

absl::Status ReadSwitch(Fields& fields, const char* name, v1::SamplingOptions* sampling,
                        SetBool set) {
  std::optional<bool> value;
  RETURN_IF_ERROR(fields.Read(name, &value));
  if (value.has_value()) (sampling->*set)(*value);
  return absl::OkStatus();
}

absl::Status ReadSampling(Fields& fields, v1::SamplingOptions* sampling) {
  RETURN_IF_ERROR(ReadNumbers(fields, sampling));
  RETURN_IF_ERROR(ReadStop(fields, sampling));
  RETURN_IF_ERROR(ReadLogitBias(fields, sampling));
  RETURN_IF_ERROR(ReadSwitch(fields, "ignore_eos", sampling, &v1::SamplingOptions::set_ignore_eos));
  RETURN_IF_ERROR(ReadSwitch(fields, "skip_special_tokens", sampling,
                             &v1::SamplingOptions::set_skip_special_tokens));
  RETURN_IF_ERROR(ReadSwitch(fields, "include_stop_str_in_output", sampling,
                             &v1::SamplingOptions::set_include_stop_str_in_output));
  if (const Json* const ids = fields.Find("stop_token_ids")) {
    std::vector<int32_t> list;
    RETURN_IF_ERROR(Fields::ReadIds(*ids, "stop_token_ids", &list));
    sampling->mutable_stop_token_ids()->Assign(list.begin(), list.end());
  }
  return absl::OkStatus();
}

// A value that is none of the field's choices.
absl::Status ChoiceError(const std::string& field, const std::string& given,
                         const std::string& choices) {
  constexpr size_t kShown = 40;  // bytes
  return ParamError(field,
                    absl::StrCat(field, " is \"", absl::CHexEscape(given.substr(0, kShown)),
                                 given.size() > kShown ? "...\"" : "\"", ", it must be ", choices));
}

// Takes the names from the fields of the API's message: those of a new policy need no code here.
absl::Status ReadPolicySettings(Fields& fields, v1::GenerateRequest* request) {
  const auto* const descriptor = v1::AttentionOptions::descriptor();
  const auto* const reflection = v1::AttentionOptions::GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* const field = descriptor->field(i);
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE) {
      std::optional<double> value;
      RETURN_IF_ERROR(fields.Read(field->name(), &value));
      if (!value.has_value()) continue;
      reflection->SetDouble(request->mutable_attention(), field, *value);
    } else if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_INT32) {
      std::optional<int64_t> value;
      RETURN_IF_ERROR(fields.Read(field->name(), &value, -kInt32Max - 1, kInt32Max));
      if (!value.has_value()) continue;
      reflection->SetInt32(request->mutable_attention(), field, static_cast<int32_t>(*value));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadAttention(Fields& fields, v1::GenerateRequest* request) {
  std::optional<std::string> policy;
  RETURN_IF_ERROR(fields.Read("policy", &policy));
  if (policy.has_value()) {
    const std::optional<v1::AttentionPolicy> named = common::PolicyNamed(*policy);
    if (!named.has_value()) {
      return ChoiceError("policy", *policy, common::PolicyNameList());
    }
    request->mutable_attention()->set_policy(*named);
  }
  std::optional<std::string> prefill;
  RETURN_IF_ERROR(fields.Read("prefill", &prefill));
  if (prefill.has_value()) {
    v1::Prefill named = v1::PREFILL_UNSPECIFIED;
    const std::string upper = absl::StrCat("PREFILL_", absl::AsciiStrToUpper(*prefill));
    if (absl::AsciiStrToLower(*prefill) != *prefill || !v1::Prefill_Parse(upper, &named) ||
        named == v1::PREFILL_UNSPECIFIED) {
      return ChoiceError("prefill", *prefill, "exact, sparse or indexed");
    }
    request->mutable_attention()->set_prefill(named);
  }
  return ReadPolicySettings(fields, request);
}

// Without it, a chat may read what was generated in its earlier turns, a completion may not.
absl::Status ReadReuse(Fields& fields, v1::GenerateRequest* request) {
  std::optional<std::string> reuse;
  RETURN_IF_ERROR(fields.Read("reuse", &reuse));
  if (!reuse.has_value()) return absl::OkStatus();
  if (*reuse != "exact" && *reuse != "generated") {
    return ChoiceError("reuse", *reuse, "exact or generated");
  }
  request->set_reuse(*reuse == "exact" ? v1::KV_REUSE_EXACT : v1::KV_REUSE_GENERATED);
  return absl::OkStatus();
}

absl::Status ReadSpeculation(Fields& fields, v1::GenerateRequest* request) {
  std::optional<std::string> speculation;
  RETURN_IF_ERROR(fields.Read("speculation", &speculation));
  if (!speculation.has_value()) return absl::OkStatus();
  if (*speculation != "off" && *speculation != "auto") {
    return ChoiceError("speculation", *speculation, "off or auto");
  }
  request->set_speculation(*speculation == "off" ? v1::SPECULATION_OFF : v1::SPECULATION_AUTO);
  return absl::OkStatus();
}

absl::Status ReadTenant(Fields& fields, v1::GenerateRequest* request) {
  std::optional<std::string> salt, tenant;
  RETURN_IF_ERROR(fields.Read("cache_salt", &salt));
  RETURN_IF_ERROR(fields.Read("tenant", &tenant));
  if (tenant.has_value()) request->set_tenant(*tenant);
  // Tenants share no cached context unless they ask for it by the same salt.
  if (salt.has_value() || tenant.has_value()) request->set_cache_salt(salt.value_or(*tenant));
  return absl::OkStatus();
}

absl::Status ReadStream(Fields& fields, RequestOptions* options) {
  std::optional<bool> stream;
  RETURN_IF_ERROR(fields.Read("stream", &stream));
  options->stream = stream.value_or(false);
  const Json* const given = fields.Find("stream_options");
  if (given == nullptr) return absl::OkStatus();
  if (!options->stream) {
    return ParamError("stream_options", "stream_options needs \"stream\": true");
  }
  ASSIGN_OR_RETURN(Fields inner, fields.Inner(*given, "stream_options"));
  std::optional<bool> usage;
  RETURN_IF_ERROR(inner.Read("include_usage", &usage));
  options->include_usage = usage.value_or(false);
  inner.Ignore("include_obfuscation");
  return inner.CheckUnknown();
}

}  // namespace

absl::Status ReadMaxTokens(Fields& fields, std::initializer_list<const char*> names,
                           v1::SamplingOptions* sampling, int64_t least) {
  for (const char* const name : names) {
    std::optional<int64_t> value;
    RETURN_IF_ERROR(fields.Read(name, &value, least, kInt32Max));
    if (!value.has_value()) continue;
    if (sampling->has_max_tokens() && sampling->max_tokens() != *value) {
      return ParamError(name, absl::StrCat(name, " contradicts the other limit of tokens"));
    }
    sampling->set_max_tokens(static_cast<int32_t>(*value));
  }
  return absl::OkStatus();
}

absl::Status ReadExtensions(Fields& fields, RequestOptions* options, v1::GenerateRequest* request) {
  RETURN_IF_ERROR(ReadAttention(fields, request));
  RETURN_IF_ERROR(ReadTenant(fields, request));
  RETURN_IF_ERROR(ReadReuse(fields, request));
  RETURN_IF_ERROR(ReadSpeculation(fields, request));
  std::optional<std::string> context;
  RETURN_IF_ERROR(fields.Read("context", &context));
  options->context = context.value_or("");
  for (const char c : options->context) {
    if (absl::ascii_isalnum(c) || std::string_view("._:-").find(c) != std::string_view::npos)
      continue;
    options->context.clear();
  }
  if (context.has_value() &&
      (options->context.empty() || options->context.size() > kContextNameMax)) {
    return ParamError("context", "context must be 1 to 128 characters of [A-Za-z0-9._:-]");
  }
  std::optional<int64_t> priority;
  RETURN_IF_ERROR(fields.Read("priority", &priority, -kInt32Max - 1, kInt32Max));
  if (priority.has_value()) request->set_priority(static_cast<int32_t>(*priority));
  std::optional<double> timeout;
  RETURN_IF_ERROR(fields.Read("timeout", &timeout));
  if (timeout.has_value()) {
    if (!(*timeout > 0 && *timeout <= kTimeoutSecondsMax)) {
      return ParamError("timeout", "timeout must be seconds, more than 0 and at most 30 days");
    }
    request->mutable_timeout()->set_seconds(static_cast<int64_t>(*timeout));
    request->mutable_timeout()->set_nanos(
        static_cast<int32_t>((*timeout - std::floor(*timeout)) * 1e9));
  }
  std::optional<bool> progress;
  RETURN_IF_ERROR(fields.Read("return_progress", &progress));
  options->return_progress = progress.value_or(false);
  return absl::OkStatus();
}

absl::Status ReadCommonFields(Fields& fields, RequestOptions* options,
                              v1::GenerateRequest* request) {
  std::optional<std::string> model;
  RETURN_IF_ERROR(fields.Read("model", &model));
  options->model = model.value_or("");
  RETURN_IF_ERROR(ReadStream(fields, options));
  RETURN_IF_ERROR(ReadSampling(fields, request->mutable_sampling()));
  RETURN_IF_ERROR(ReadExtensions(fields, options, request));
  for (const char* const name : {"user", "metadata", "service_tier", "safety_identifier",
                                 "prompt_cache_key", "prompt_cache_retention", kCacheControl}) {
    fields.Ignore(name);
  }
  RETURN_IF_ERROR(fields.Hint("store", "answers are stored nowhere"));
  return fields.Hint("logits_processors", "this server has none");
}

}  // namespace retroinfer::gateway
