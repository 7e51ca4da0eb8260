#include "http_gateway/api/stable_prompt.h"

#include <string>
#include <string_view>

#include "absl/strings/match.h"

namespace retroinfer::gateway {
namespace {

constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

}  // namespace

Json WithoutCacheControl(const Json& list) {
  Json copy = list;
  if (!copy.is_array()) return copy;
  for (Json& entry : copy) {
    if (!entry.is_object()) continue;
    entry.erase(kCacheControl);
    const auto function = entry.find("function");
    if (function != entry.end() && function->is_object()) function->erase(kCacheControl);
  }
  return copy;
}

void DropBillingHeader(generation::v1::Messages* conversation) {
  for (int i = 0; i < conversation->messages_size(); ++i) {
    generation::v1::Message& message = *conversation->mutable_messages(i);
    if (message.role() != "system") continue;
    std::string& content = *message.mutable_content();
    if (!absl::StartsWithIgnoreCase(content, std::string(kBillingHeader))) return;
    const size_t end = content.find('\n');
    content.erase(0, end == std::string::npos ? end : end + 1);
    if (content.empty() && conversation->messages_size() > 1) {
      conversation->mutable_messages()->DeleteSubrange(i, 1);
    }
    return;
  }
}

}  // namespace retroinfer::gateway
