#include "common/rpc/policy_name.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace retroinfer::common {
namespace {

using generation::v1::AttentionPolicy;

constexpr std::string_view kPrefix = "ATTENTION_POLICY_";

}  // namespace

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  const auto* const values = generation::v1::AttentionPolicy_descriptor();
  for (int i = 0; i < values->value_count(); ++i) {
    const std::string name = NameOfPolicy(static_cast<AttentionPolicy>(values->value(i)->number()));
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

std::string PolicyNameList() {
  const std::vector<std::string> names = PolicyNames();
  std::string list;
  for (size_t i = 0; i < names.size(); ++i) {
    const bool is_last = i + 1 == names.size();
    absl::StrAppend(&list, i == 0 ? "" : is_last ? " or " : ", ", names[i]);
  }
  return list;
}

std::string NameOfPolicy(AttentionPolicy policy) {
  if (policy == generation::v1::ATTENTION_POLICY_UNSPECIFIED) return "";
  const std::string& value = generation::v1::AttentionPolicy_Name(policy);
  if (value.size() <= kPrefix.size()) return "";
  return absl::AsciiStrToLower(value.substr(kPrefix.size()));
}

std::optional<AttentionPolicy> PolicyNamed(std::string_view name) {
  const auto* const values = generation::v1::AttentionPolicy_descriptor();
  for (int i = 0; i < values->value_count(); ++i) {
    const auto policy = static_cast<AttentionPolicy>(values->value(i)->number());
    if (!name.empty() && NameOfPolicy(policy) == name) return policy;
  }
  return std::nullopt;
}

}  // namespace retroinfer::common
