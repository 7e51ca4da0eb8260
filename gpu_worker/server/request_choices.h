// What a request chooses by name: values that this server does not know are refused.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "gpu_worker/engine/generation.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer {

inline absl::Status UnknownChoice(const char* field, int value) {
  return common::WithReason(
      absl::InvalidArgumentError(absl::StrCat(field, " ", value, " is not known to this server")),
      "INVALID_REQUEST");
}

// A conversation goes on where it ended; a text is computed as it is.
inline absl::StatusOr<KvReuse> ReadReuse(const generation::v1::GenerateRequest& request) {
  switch (request.reuse()) {
    case generation::v1::KV_REUSE_UNSPECIFIED:
      return request.has_messages() ? KvReuse::kGenerated : KvReuse::kExact;
    case generation::v1::KV_REUSE_EXACT:
      return KvReuse::kExact;
    case generation::v1::KV_REUSE_GENERATED:
      return KvReuse::kGenerated;
    default:
      return UnknownChoice("reuse", request.reuse());
  }
}

// `by_default` where the request does not say; but exact with policy streaming, which has no other.
inline absl::StatusOr<PrefillKind> ReadPrefill(const generation::v1::AttentionOptions& options,
                                               PolicyKind policy, PrefillKind by_default) {
  switch (options.prefill()) {
    case generation::v1::PREFILL_UNSPECIFIED:
      return policy == PolicyKind::kStreaming ? PrefillKind::kExact : by_default;
    case generation::v1::PREFILL_EXACT:
      return PrefillKind::kExact;
    case generation::v1::PREFILL_SPARSE:
      return PrefillKind::kSparse;
    case generation::v1::PREFILL_INDEXED:
      return PrefillKind::kIndexed;
    default:
      return UnknownChoice("prefill", options.prefill());
  }
}

inline generation::v1::Prefill ToProto(PrefillKind prefill) {
  switch (prefill) {
    case PrefillKind::kExact:
      return generation::v1::PREFILL_EXACT;
    case PrefillKind::kSparse:
      return generation::v1::PREFILL_SPARSE;
    case PrefillKind::kIndexed:
      return generation::v1::PREFILL_INDEXED;
  }
  return generation::v1::PREFILL_UNSPECIFIED;
}

// GenerationRequest::drafts.
inline absl::StatusOr<bool> ReadSpeculation(const generation::v1::GenerateRequest& request) {
  if (!generation::v1::Speculation_IsValid(request.speculation())) {
    return UnknownChoice("speculation", request.speculation());
  }
  return request.speculation() != generation::v1::SPECULATION_OFF;
}

}  // namespace retroinfer
