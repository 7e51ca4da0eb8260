#include "http_gateway/api/stats_json.h"

#include "absl/strings/str_cat.h"
#include "http_gateway/json/json_text.h"

namespace retroinfer::gateway {

namespace v1 = generation::v1;

std::string StatsJson(const v1::GetModelInfoResponse& info) {
  const v1::WorkerStats& stats = info.stats();
  const bool is_full = info.default_attention().policy() == v1::ATTENTION_POLICY_FULL;
  return absl::StrCat(
      R"({"model":)", JsonString(info.model_name()), R"(,"device":)",
      JsonString(info.device_name()), R"(,"version":)", JsonString(info.server_version()),
      R"(,"max_model_len":)", info.max_model_len(), R"(,"default_max_tokens":)",
      info.default_max_tokens(), R"(,"default_policy":)", is_full ? R"("full")" : R"("wave")",
      R"(,"requests_running":)", stats.requests_running(), R"(,"requests_waiting":)",
      stats.requests_waiting(), R"(,"uptime_seconds":)", stats.uptime().seconds(),
      R"(,"prompt_tokens_total":)", stats.prompt_tokens_total(), R"(,"generation_tokens_total":)",
      stats.generation_tokens_total(), R"(,"decode_steps_total":)", stats.decode_steps_total(),
      R"(,"page_hits_total":)", stats.page_hits_total(), R"(,"page_misses_total":)",
      stats.page_misses_total(), R"(,"page_transients_total":)", stats.page_transients_total(),
      R"(,"slots_used":)", stats.slots_used(), R"(,"slots":)", stats.slots_total(), "}");
}

}  // namespace retroinfer::gateway
