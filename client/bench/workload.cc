#include "client/bench/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer::client {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;       // of a request
constexpr int64_t kMaxTokensInAll = int64_t{1} << 29;  // of prompts: the plan holds them
constexpr double kMaxSeconds = 7 * 24 * 3600;
constexpr std::array<std::string_view, 4> kMixes = {"chat", "documents", "agents", "mixed"};
constexpr int64_t kAgentPrefix = 100352;
constexpr int64_t kDocuments = 8;

absl::Status LineError(size_t line, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", std::string(what)));
}

absl::StatusOr<int64_t> Integer(const nlohmann::json& value, const std::string& name, int64_t least,
                                int64_t most) {
  // Numbers above 2^63 would wrap where they are compared with signed ones.
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
  if (fits && value >= least && value <= most) return value.get<int64_t>();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " is ", value.dump(), ": it must be a whole number from ", least, " to ", most));
}

absl::StatusOr<WorkloadRequest> ParseRequest(const nlohmann::json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("is not a JSON object");
  WorkloadRequest request{.request_class = "default"};
  for (const auto& [name, value] : json.items()) {
    if (name == "arrival") {
      if (!value.is_number() || !(value >= 0.0 && value <= kMaxSeconds)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "arrival is ", value.dump(), ": it must be seconds from 0 to ", kMaxSeconds));
      }
      request.arrival = absl::Seconds(value.get<double>());
    } else if (name == "tenant") {
      if (!value.is_string() || value.get<std::string>().size() > 64) {
        return absl::InvalidArgumentError("tenant must be a text of at most 64 bytes");
      }
      request.tenant = value.get<std::string>();
    } else if (name == "prefix" || name == "class") {
      if (!value.is_string() || value.get<std::string>().size() > 200) {
        return absl::InvalidArgumentError(name + " must be a text of at most 200 bytes");
      }
      (name == "prefix" ? request.prefix : request.request_class) = value.get<std::string>();
    } else if (name == "input_len") {
      ASSIGN_OR_RETURN(request.input_len, Integer(value, name, 1, kMaxTokens));
    } else if (name == "prefix_len") {
      ASSIGN_OR_RETURN(request.prefix_len, Integer(value, name, 0, kMaxTokens));
    } else if (name == "output_len") {
      ASSIGN_OR_RETURN(const int64_t length, Integer(value, name, 1, kMaxTokens));
      request.output_len = static_cast<int32_t>(length);
    } else if (name == "priority") {
      ASSIGN_OR_RETURN(const int64_t priority, Integer(value, name, INT32_MIN, INT32_MAX));
      request.priority = static_cast<int32_t>(priority);
    } else {
      return absl::InvalidArgumentError(absl::StrCat("unknown field ", name));
    }
  }
  if (request.input_len == 0 || request.output_len == 0) {
    return absl::InvalidArgumentError("input_len and output_len are needed");
  }
  if (request.prefix_len > request.input_len) {
    return absl::InvalidArgumentError("prefix_len is longer than input_len");
  }
  if (request.prefix.empty() != (request.prefix_len == 0)) {
    return absl::InvalidArgumentError("prefix and prefix_len go together");
  }
  return request;
}

// Lengths whose logarithms are spread evenly.
int64_t LogUniform(int64_t least, int64_t most, std::mt19937_64& random) {
  std::uniform_real_distribution<double> exponent(std::log(static_cast<double>(least)),
                                                  std::log(static_cast<double>(most)));
  return static_cast<int64_t>(std::exp(exponent(random)));
}

WorkloadRequest DrawRequest(std::string_view mix, std::mt19937_64& random,
                            std::span<const int64_t> documents) {
  if (mix == "mixed") {
    const uint64_t kind = random() % 10;
    mix = kind < 7 ? kMixes[0] : kind < 9 ? kMixes[1] : kMixes[2];
  }
  WorkloadRequest request{.request_class = std::string(mix)};
  if (mix == "chat") {
    request.input_len = LogUniform(64, 2048, random);
    request.output_len = static_cast<int32_t>(LogUniform(32, 256, random));
    return request;
  }
  const size_t document = static_cast<size_t>(random() % static_cast<uint64_t>(kDocuments));
  const bool is_agent = mix == "agents";
  request.prefix = is_agent ? "agent" : absl::StrCat("document ", document);
  request.prefix_len = is_agent ? kAgentPrefix : documents[document];
  request.input_len = request.prefix_len + LogUniform(50, 400, random);
  request.output_len = static_cast<int32_t>(LogUniform(32, 256, random));
  return request;
}

// Takes from the prefix first what is too much.
void Cut(int64_t max_request_len, WorkloadRequest& request) {
  request.output_len = static_cast<int32_t>(
      std::min<int64_t>(request.output_len, std::max<int64_t>(1, max_request_len / 4)));
  const int64_t over = request.input_len + request.output_len - max_request_len;
  if (over <= 0) return;
  request.input_len -= over;
  request.prefix_len = std::max<int64_t>(0, request.prefix_len - over);
  if (request.prefix_len == 0) request.prefix.clear();
}

}  // namespace

absl::StatusOr<std::vector<WorkloadRequest>> ParseWorkload(std::string_view text) {
  std::vector<WorkloadRequest> requests;
  int64_t tokens = 0;
  for (size_t line = 1; !text.empty(); ++line) {
    const std::string_view row = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), row.size() + 1));
    if (row.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const nlohmann::json json = nlohmann::json::parse(row, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) return LineError(line, "is not JSON");
    absl::StatusOr<WorkloadRequest> request = ParseRequest(json);
    if (!request.ok()) {
      return LineError(line, std::string(request.status().message()));
    }
    tokens += request->input_len;
    if (tokens > kMaxTokensInAll) {
      return LineError(line, absl::StrCat("the prompts up to here have ", tokens,
                                          " tokens; a load has at most ", kMaxTokensInAll));
    }
    requests.push_back(*std::move(request));
  }
  if (requests.empty()) return absl::InvalidArgumentError("there is no request in it");
  std::stable_sort(requests.begin(), requests.end(),
                   [](const auto& a, const auto& b) { return a.arrival < b.arrival; });
  return requests;
}

std::span<const std::string_view> MixNames() { return kMixes; }

std::vector<WorkloadRequest> MakeMix(std::string_view name, const MixOptions& options) {
  std::mt19937_64 random(options.seed);
  std::vector<int64_t> documents;
  for (int64_t i = 0; i < kDocuments; ++i) documents.push_back(LogUniform(8192, 65536, random));
  const bool at_once = std::isinf(options.request_rate);
  std::exponential_distribution<double> gap(at_once ? 1.0 : options.request_rate);
  absl::Duration arrival = absl::ZeroDuration();
  std::vector<WorkloadRequest> requests;
  for (int32_t i = 0; i < options.num_prompts; ++i) {
    requests.push_back(DrawRequest(name, random, documents));
    requests.back().arrival = arrival;
    Cut(options.max_request_len, requests.back());
    if (!at_once) arrival += absl::Seconds(gap(random));
  }
  return requests;
}

std::vector<PlannedRequest> PlanWorkload(std::span<const WorkloadRequest> requests,
                                         int32_t vocab_size,
                                         std::span<const int32_t> excluded_tokens, uint64_t seed) {
  const auto fill = [&](std::mt19937_64& random, std::vector<int32_t>& tokens, int64_t length) {
    std::uniform_int_distribution<int32_t> any_token(0, vocab_size - 1);
    while (static_cast<int64_t>(tokens.size()) < length) {
      const int32_t token = any_token(random);
      if (std::find(excluded_tokens.begin(), excluded_tokens.end(), token) ==
          excluded_tokens.end()) {
        tokens.push_back(token);
      }
    }
  };
  // Each prefix by itself, so that a longer cut of it begins with a shorter one.
  std::map<std::string, std::pair<std::mt19937_64, std::vector<int32_t>>> prefixes;
  std::mt19937_64 random(seed);
  std::vector<PlannedRequest> plan;
  for (const WorkloadRequest& request : requests) {
    PlannedRequest& planned = plan.emplace_back();
    planned.arrival = request.arrival;
    planned.output_len = request.output_len;
    planned.request_class = request.request_class;
    planned.priority = request.priority;
    planned.tenant = request.tenant;
    if (request.prefix_len > 0) {
      std::vector<uint32_t> name_and_seed(request.prefix.begin(), request.prefix.end());
      name_and_seed.push_back(static_cast<uint32_t>(seed));
      name_and_seed.push_back(static_cast<uint32_t>(seed >> 32));
      std::seed_seq own(name_and_seed.begin(), name_and_seed.end());
      auto& [generator, tokens] =
          prefixes.try_emplace(request.prefix, std::mt19937_64(own), std::vector<int32_t>())
              .first->second;
      fill(generator, tokens, request.prefix_len);
      planned.token_ids.assign(tokens.begin(), tokens.begin() + request.prefix_len);
    }
    fill(random, planned.token_ids, request.input_len);
  }
  return plan;
}

}  // namespace retroinfer::client
