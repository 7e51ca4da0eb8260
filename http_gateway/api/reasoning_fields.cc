#include "http_gateway/api/reasoning_fields.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/status_macros.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr char kEffort[] = "reasoning_effort";
constexpr std::array<const char*, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                 "high", "xhigh",   "max"};

void SetThinking(bool thinks, v1::Messages* conversation) {
  if (!conversation->has_enable_thinking()) conversation->set_enable_thinking(thinks);
}

absl::Status ReadReasoningObject(Fields& fields, v1::Messages* conversation) {
  const Json* const reasoning = fields.Find("reasoning");
  if (reasoning == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(Fields inner, fields.Inner(*reasoning, fields.PathOf("reasoning")));
  std::optional<std::string> effort;
  RETURN_IF_ERROR(inner.Read("effort", &effort));
  if (effort.has_value()) {
    RETURN_IF_ERROR(SetReasoningEffort(*effort, inner.PathOf("effort"), conversation));
  }
  std::optional<bool> enabled;
  RETURN_IF_ERROR(inner.Read("enabled", &enabled));
  if (enabled.has_value()) SetThinking(*enabled, conversation);
  // Thoughts are never summed up: they come as they are.
  for (const char* const name : {"summary", "generate_summary", "exclude", "max_tokens"}) {
    RETURN_IF_ERROR(inner.Hint(name, "thoughts come whole, as the model writes them", "auto"));
  }
  return inner.CheckUnknown();
}

absl::Status ReadThinking(Fields& fields, v1::Messages* conversation) {
  const Json* const thinking = fields.Find("thinking");
  if (thinking == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(Fields inner, fields.Inner(*thinking, fields.PathOf("thinking")));
  std::optional<std::string> type;
  RETURN_IF_ERROR(inner.Read("type", &type));
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    return ParamError(inner.PathOf("type"),
                      absl::StrCat(inner.PathOf("type"), " must be enabled, disabled or adaptive"));
  }
  if (type != "adaptive") SetThinking(type == "enabled", conversation);
  for (const char* const name : {"budget_tokens", "display"}) {
    RETURN_IF_ERROR(inner.Hint(name, "the model thinks as long as it does"));
  }
  return inner.CheckUnknown();
}

}  // namespace

absl::Status SetReasoningEffort(const std::string& effort, const std::string& path,
                                v1::Messages* conversation) {
  if (std::find(kEfforts.begin(), kEfforts.end(), effort) == kEfforts.end()) {
    return ParamError(path, absl::StrCat(path, " must be one of ", absl::StrJoin(kEfforts, ", ")));
  }
  if (effort == "none") SetThinking(false, conversation);
  Json arguments = Json::object();
  if (!conversation->template_arguments().empty()) {
    arguments = Json::parse(conversation->template_arguments());  // of this server's own writing
  }
  if (arguments.contains(kEffort)) return absl::OkStatus();
  arguments[kEffort] = effort;
  conversation->set_template_arguments(arguments.dump());
  return absl::OkStatus();
}

absl::Status ReadReasoning(Fields& fields, v1::Messages* conversation) {
  std::optional<std::string> effort;
  RETURN_IF_ERROR(fields.Read(kEffort, &effort));
  if (effort.has_value()) {
    RETURN_IF_ERROR(SetReasoningEffort(*effort, fields.PathOf(kEffort), conversation));
  }
  RETURN_IF_ERROR(ReadReasoningObject(fields, conversation));
  return ReadThinking(fields, conversation);
}

}  // namespace retroinfer::gateway
