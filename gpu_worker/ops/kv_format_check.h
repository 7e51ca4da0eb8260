// Which KV formats a backend has code for: the one place where an operation refuses the others.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "common/kv/kv_format.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"

namespace retroinfer {

// Element types that the operations of a backend read and write.
struct KvElementTypes {
  std::string_view backend;              // for messages
  std::span<const VectorFormat> tokens;  // of pages and dense blocks
  std::span<const VectorFormat> index;   // of centroids and of value sums
  size_t page_bytes = 0;                 // 0: any
};

// Whether the KV of a prompt in `prompt` holds what pages of `token` do, exactly.
constexpr bool KeepsPrompt(const VectorFormat& token, DType prompt) {
  return token.IsPlain(prompt) || (token == kEightBitTokens && prompt == DType::kBf16);
}

// Returns INVALID_ARGUMENT, with what there is no code for, unless `types` have all that `format`
// stores. Operations copy between the KV of a prompt and pages as it is, or widen eight bits to
// bf16, which holds them exactly.
inline absl::Status CheckKvFormat(const KvElementTypes& types, const KvFormat& format) {
  const auto has = [](const auto& all, const auto& one) {
    return std::find(all.begin(), all.end(), one) != all.end();
  };
  const char* what = nullptr;
  if (!has(types.tokens, format.token)) what = "keys and values";
  if (!KeepsPrompt(format.token, format.prompt)) what = "the KV of a prompt";
  if (!has(types.index, format.centroid)) what = "centroids";
  if (!has(types.index, format.value_sum)) what = "value sums";
  if (types.page_bytes != 0 && types.page_bytes != format.page_vector_bytes) what = "pages";
  if (what == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the ", AbslView(types.backend), " backend has no code for KV format ",
                   AbslView(format.name), ": for ", what, " as it stores them"));
}

// The same of the KV of a prompt alone, for operations that see no page.
inline absl::Status CheckPromptType(const KvElementTypes& types, std::string_view op,
                                    DType prompt) {
  return CheckArg(std::find(types.tokens.begin(), types.tokens.end(),
                            VectorFormat{.element = prompt}) != types.tokens.end(),
                  op, "the ", AbslView(types.backend), " backend has no code for KV in ",
                  AbslView(DTypeName(prompt)));
}

}  // namespace retroinfer
