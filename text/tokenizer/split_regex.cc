#include "text/tokenizer/split_regex.h"

#include <string>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log/check.h"

namespace retroinfer {
namespace {

constexpr uint32_t kMatchLimitBase = 10'000'000;  // PCRE2's own default
constexpr uint32_t kMatchLimitPerByte = 16;       // white space is tried by several alternatives
constexpr uint32_t kHeapLimitKib = 512 * 1024;    // of the interpreter, where there is no JIT

std::string PcreMessage(int error) {
  PCRE2_UCHAR message[256];
  if (pcre2_get_error_message(error, message, sizeof(message)) < 0) {
    return absl::StrCat("PCRE2 error ", error);
  }
  return reinterpret_cast<const char*>(message);
}

}  // namespace

void SplitRegex::CodeDeleter::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }
void SplitMatcher::MatchDataDeleter::operator()(pcre2_real_match_data_8* data) const {
  pcre2_match_data_free(data);
}
void SplitMatcher::MatchContextDeleter::operator()(pcre2_real_match_context_8* context) const {
  pcre2_match_context_free(context);
}

absl::StatusOr<SplitRegex> SplitRegex::Compile(std::string_view pattern) {
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  SplitRegex regex(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error,
                                 &error_offset, nullptr));
  if (regex.code_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the pattern does not compile: ", PcreMessage(error)));
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(regex.code(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) {
    return absl::InvalidArgumentError("a pattern that matches the empty string is not supported");
  }
  // Without JIT (a system that forbids executable memory) PCRE2 interprets, several times slower.
  pcre2_jit_compile(regex.code_.get(), PCRE2_JIT_COMPLETE);
  return regex;
}

SplitMatcher::SplitMatcher(const SplitRegex& regex)
    : regex_(&regex),
      data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)) {
  RI_CHECK(data_ != nullptr && context_ != nullptr);
  pcre2_set_heap_limit(context_.get(), kHeapLimitKib);
}

absl::StatusOr<std::optional<SplitMatcher::Match>> SplitMatcher::Find(std::string_view subject,
                                                                      size_t from) {
  const uint64_t limit = kMatchLimitBase + uint64_t{kMatchLimitPerByte} * subject.size();
  pcre2_set_match_limit(context_.get(),
                        static_cast<uint32_t>(limit > UINT32_MAX ? UINT32_MAX : limit));
  const auto match = [&](uint32_t options) {
    return pcre2_match(regex_->code(), reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(),
                       from, PCRE2_NO_UTF_CHECK | options, data_.get(), context_.get());
  };
  int result = match(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("the tokenizer's pattern fails on a text of ",
                                                     subject.size(), " bytes, near offset ", from,
                                                     ": ", PcreMessage(result)));
  }
  const PCRE2_SIZE* const offsets = pcre2_get_ovector_pointer(data_.get());
  return Match{offsets[0], offsets[1]};
}

}  // namespace retroinfer
