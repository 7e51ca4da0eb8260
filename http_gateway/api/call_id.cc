#include "http_gateway/api/call_id.h"

#include <string_view>

#include "absl/random/random.h"

namespace retroinfer::gateway {
namespace {

constexpr std::string_view kAlphabet =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
constexpr size_t kLength = 24;
constexpr size_t kMistralLength = 9;

}  // namespace

std::string DrawCallId(ToolForm form) {
  thread_local absl::BitGen random;
  const bool is_short = form == ToolForm::kMistral || form == ToolForm::kMistralArgs;
  std::string id = is_short ? "" : "call_";
  for (size_t i = 0; i < (is_short ? kMistralLength : kLength); ++i) {
    id.push_back(kAlphabet[absl::Uniform<size_t>(random, 0, kAlphabet.size())]);
  }
  return id;
}

}  // namespace retroinfer::gateway
