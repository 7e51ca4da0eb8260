#include "client/generate/request_flags.h"

#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/rpc/policy_name.h"

namespace retroinfer::client {
namespace {

namespace v1 = generation::v1;

constexpr char kSamplingGroup[] = "Sampling";
constexpr char kAttentionGroup[] = "Attention";
constexpr char kConstraintGroup[] = "Constraint";
constexpr char kRequestGroup[] = "Request";

// "42=-3.5"
void AddLogitBias(const std::string& text, v1::SamplingOptions* sampling) {
  const size_t equals = text.find('=');
  int32_t token = 0;
  float bias = 0;
  if (equals == std::string::npos || !absl::SimpleAtoi(text.substr(0, equals), &token) ||
      !absl::SimpleAtof(text.substr(equals + 1), &bias)) {
    throw CLI::ValidationError("--logit-bias",
                               "'" + text + "' is not a token id, = and a number, like 42=-3.5");
  }
  (*sampling->mutable_logit_bias())[token] = bias;
}

void AddSamplingFlags(CLI::App& app, v1::GenerateRequest* request) {
  // The message lives as long as the request; it is touched only when a flag is given.
  const auto sampling = [request] { return request->mutable_sampling(); };
  const auto add_float = [&](const char* flag, const char* help,
                             void (v1::SamplingOptions::*set)(float)) {
    app.add_option_function<float>(
           flag, [sampling, set](const float& value) { (sampling()->*set)(value); }, help)
        ->group(kSamplingGroup);
  };
  const auto add_int = [&](const char* flag, const char* help,
                           void (v1::SamplingOptions::*set)(int32_t)) {
    app.add_option_function<int32_t>(
           flag, [sampling, set](const int32_t& value) { (sampling()->*set)(value); }, help)
        ->group(kSamplingGroup);
  };
  add_int("--max-tokens", "Most tokens to generate", &v1::SamplingOptions::set_max_tokens);
  add_int("--min-tokens", "Fewest tokens to generate", &v1::SamplingOptions::set_min_tokens);
  add_float("--temperature", "0 is greedy", &v1::SamplingOptions::set_temperature);
  add_float("--top-p", "Sample from the likeliest tokens that make up this probability",
            &v1::SamplingOptions::set_top_p);
  add_int("--top-k", "Sample from so many of the likeliest tokens; 0: all",
          &v1::SamplingOptions::set_top_k);
  add_float("--min-p", "Leave out tokens less likely than this share of the likeliest",
            &v1::SamplingOptions::set_min_p);
  add_float("--repetition-penalty", "Over 1 makes seen tokens less likely",
            &v1::SamplingOptions::set_repetition_penalty);
  add_float("--frequency-penalty", "Penalty for each earlier use of a token, -2 to 2",
            &v1::SamplingOptions::set_frequency_penalty);
  add_float("--presence-penalty", "Penalty for tokens used before, -2 to 2",
            &v1::SamplingOptions::set_presence_penalty);
  app.add_option_function<uint64_t>(
         "--seed", [sampling](const uint64_t& value) { sampling()->set_seed(value); },
         "The same seed gives the same output")
      ->group(kSamplingGroup);
  app.add_option_function<std::vector<std::string>>(
         "--stop",
         [sampling](const std::vector<std::string>& values) {
           for (const std::string& value : values) sampling()->add_stop(value);
         },
         "Text that ends the output; may be given several times")
      ->allow_extra_args(false)  // or it would take the prompt, too
      ->group(kSamplingGroup);
  app.add_option_function<std::vector<std::string>>(
         "--logit-bias",
         [sampling](const std::vector<std::string>& values) {
           for (const std::string& value : values) AddLogitBias(value, sampling());
         },
         "TOKEN=BIAS: add -100 to 100 to the logit of a token; may be given several times")
      ->allow_extra_args(false)
      ->group(kSamplingGroup);
  app.add_flag_function(
         "--ignore-eos", [sampling](int64_t) { sampling()->set_ignore_eos(true); },
         "Go on after the model's end-of-sequence token")
      ->group(kSamplingGroup);
}

void AddAttentionFlags(CLI::App& app, v1::GenerateRequest* request) {
  app.add_option_function<std::string>(
         "--policy",
         [request](const std::string& policy) {
           request->mutable_attention()->set_policy(*common::PolicyNamed(policy));
         },
         "Attention: wave (clusters that matter, others estimated), full (exact) or streaming (the "
         "first and the newest tokens)")
      ->check(CLI::IsMember(common::PolicyNames()))
      ->group(kAttentionGroup);
  app.add_option_function<std::string>(
         "--prefill",
         [request](const std::string& prefill) {
           v1::Prefill named = v1::PREFILL_UNSPECIFIED;
           (void)v1::Prefill_Parse(absl::StrCat("PREFILL_", absl::AsciiStrToUpper(prefill)),
                                   &named);
           request->mutable_attention()->set_prefill(named);
         },
         "exact; sparse: a long prompt attends to the blocks that matter; or indexed: the prompt's "
         "end attends as generated tokens do (default: the server's)")
      ->check(CLI::IsMember({"exact", "sparse", "indexed"}))
      ->group(kAttentionGroup);
  app.add_option_function<int32_t>(
         "--tail-tokens",
         [request](const int32_t& tokens) {
           request->mutable_attention()->set_tail_tokens(tokens);
         },
         "--prefill indexed: tokens of the prompt's end (1 to 4096; 256 if not given)")
      ->group(kAttentionGroup);
  app.add_option_function<double>(
         "--retrieval-ratio",
         [request](const double& ratio) {
           request->mutable_attention()->set_retrieval_ratio(ratio);
         },
         "wave: share of the clusters that is attended exactly")
      ->group(kAttentionGroup);
  app.add_option_function<double>(
         "--estimation-ratio",
         [request](const double& ratio) {
           request->mutable_attention()->set_estimation_ratio(ratio);
         },
         "wave: share of the clusters that is estimated")
      ->group(kAttentionGroup);
  app.add_option_function<double>(
         "--max-unseen-mass",
         [request](const double& share) {
           request->mutable_attention()->set_max_unseen_mass(share);
         },
         "wave: share of the softmax mass that may be left to estimates; retrieves up to four "
         "times "
         "as much for it")
      ->group(kAttentionGroup);
  app.add_option_function<int32_t>(
         "--streaming-window",
         [request](const int32_t& tokens) {
           request->mutable_attention()->set_streaming_window(tokens);
         },
         "streaming: newest tokens that are attended (64 to 1048576; 4096 if not given)")
      ->group(kAttentionGroup);
}

// The file's text for "@FILE", else the value itself.
std::string TextOrFile(const std::string& flag, const std::string& value) {
  if (value.empty() || value.front() != '@') return value;
  std::ifstream file(value.substr(1), std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    throw CLI::ValidationError(flag, "cannot read the file '" + value.substr(1) + "'");
  }
  return text;
}

void AddConstraintFlags(CLI::App& app, v1::GenerateRequest* request) {
  CLI::Option_group* const group = app.add_option_group(kConstraintGroup);
  group->require_option(0, 1);
  const auto add_text = [&](const char* flag, const char* help,
                            std::string* (v1::Constraint::*text)()) {
    group->add_option_function<std::string>(
        flag,
        [request, text, flag](const std::string& value) {
          *(request->mutable_constraint()->*text)() = TextOrFile(flag, value);
        },
        help);
  };
  add_text("--json-schema",
           "The answer is the JSON text of a value that this schema accepts; @FILE reads a file",
           &v1::Constraint::mutable_json_schema);
  add_text("--regex", "The answer as a whole matches this regular expression; @FILE reads a file",
           &v1::Constraint::mutable_regex);
  add_text("--grammar", "The answer is a text of this GBNF grammar; @FILE reads a file",
           &v1::Constraint::mutable_grammar);
  group
      ->add_option_function<std::vector<std::string>>(
          "--choice",
          [request](const std::vector<std::string>& values) {
            for (const std::string& value : values) {
              request->mutable_constraint()->mutable_choices()->add_texts(value);
            }
          },
          "The answer is one of these texts; may be given several times")
      ->allow_extra_args(false);
}

void AddCallFlags(CLI::App& app, v1::GenerateRequest* request) {
  app.add_flag_function(
         "--parse-special", [request](int64_t) { request->set_parse_special(true); },
         "Special tokens that are written out in the prompt (<|eot_id|>) become those tokens; not "
         "for messages")
      ->group(kRequestGroup);
  app.add_option_function<std::string>(
         "--request-id", [request](const std::string& id) { request->set_request_id(id); },
         "Name of the request in the server's log")
      ->group(kRequestGroup);
  app.add_option_function<int32_t>(
         "--priority", [request](const int32_t& value) { request->set_priority(value); },
         "Lower runs first")
      ->group(kRequestGroup);
  app.add_option_function<std::string>(
         "--tenant", [request](const std::string& tenant) { request->set_tenant(tenant); },
         "Whom the work is for: tenants share the server's time")
      ->group(kRequestGroup);
  app.add_option_function<std::string>(
         "--cache-salt", [request](const std::string& salt) { request->set_cache_salt(salt); },
         "Share cached context only with requests of the same salt")
      ->group(kRequestGroup);
  app.add_option_function<std::string>(
         "--reuse",
         [request](const std::string& reuse) {
           request->set_reuse(reuse == "exact" ? v1::KV_REUSE_EXACT : v1::KV_REUSE_GENERATED);
         },
         "Which cached KV may be read: exact (what computing the prompt gives), or generated (also "
         "that of generated tokens; what conversations do if nothing is given)")
      ->check(CLI::IsMember({"exact", "generated"}))
      ->group(kRequestGroup);
  app.add_option_function<std::string>(
         "--speculation",
         [request](const std::string& speculation) {
           request->set_speculation(speculation == "off" ? v1::SPECULATION_OFF
                                                         : v1::SPECULATION_AUTO);
         },
         "off or auto: whether steps may try drafts of the next tokens, where the server does that")
      ->check(CLI::IsMember({"off", "auto"}))
      ->group(kRequestGroup);
  app.add_option_function<std::string>(
         "--prediction", [request](const std::string& text) { request->set_prediction(text); },
         "What the answer is expected to be like, for drafts of its tokens")
      ->group(kRequestGroup);
  app.add_option_function<std::string>(
         "--timeout",
         [request](const std::string& text) {
           absl::Duration timeout;
           if (!absl::ParseDuration(text, &timeout) || timeout <= absl::ZeroDuration() ||
               timeout > absl::Hours(24 * 365)) {
             throw CLI::ValidationError("--timeout", "'" + text + "' is not a time like 30s, 5m");
           }
           request->mutable_timeout()->set_seconds(
               absl::IDivDuration(timeout, absl::Seconds(1), &timeout));
           request->mutable_timeout()->set_nanos(
               static_cast<int32_t>(absl::ToInt64Nanoseconds(timeout)));
         },
         "End the output after this time, for example 30s")
      ->group(kRequestGroup);
}

}  // namespace

void AddRequestFlags(common::Settings* settings, v1::GenerateRequest* request) {
  AddSamplingFlags(settings->app(), request);
  AddAttentionFlags(settings->app(), request);
  AddConstraintFlags(settings->app(), request);
  AddCallFlags(settings->app(), request);
}

}  // namespace retroinfer::client
