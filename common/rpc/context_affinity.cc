#include "common/rpc/context_affinity.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/log/check.h"

namespace retroinfer::common {
namespace {

constexpr size_t kHashBytes = 8;  // of SHA-256
constexpr size_t kNameBytesMax = 128;

std::string BeginningOf(const generation::v1::Messages& messages) {
  std::string beginning;
  for (const generation::v1::Message& message : messages.messages()) {
    if (message.role() == "assistant" || beginning.size() >= kContextAffinityBytes) break;
    const std::string_view content(message.content());
    absl::StrAppend(&beginning, message.role(), "\n");
    beginning.append(content.substr(0, kContextAffinityBytes)).push_back('\n');
  }
  return beginning;
}

template <typename Request>
std::string Affinity(const Request& request) {
  if (request.has_messages()) return ContextAffinity(BeginningOf(request.messages()));
  if (!request.has_token_ids()) return ContextAffinity(request.text());
  const auto& ids = request.token_ids().ids();
  return ContextAffinity(std::string_view(reinterpret_cast<const char*>(ids.data()),
                                          static_cast<size_t>(ids.size()) * sizeof(int32_t)));
}

}  // namespace

std::string ContextAffinity(std::string_view beginning) {
  const size_t size = std::min(beginning.size(), kContextAffinityBytes);
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  RI_CHECK(EVP_Digest(beginning.data(), size, hash.data(), nullptr, EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(hash.data()), kHashBytes));
}

std::string ContextAffinity(const generation::v1::GenerateRequest& request) {
  return Affinity(request);
}

std::string ContextAffinity(const generation::v1::ScoreRequest& request) {
  return Affinity(request);
}

absl::Status CheckContextAffinity(std::string_view name) {
  const auto is_allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == ':' ||
           c == '-';
  };
  if (!name.empty() && name.size() <= kNameBytesMax && std::ranges::all_of(name, is_allowed)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--context-affinity needs 1 to ", kNameBytesMax,
                                                 " characters of letters, digits and . _ : -"));
}

}  // namespace retroinfer::common
