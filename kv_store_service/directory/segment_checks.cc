#include "kv_store_service/directory/segment_checks.h"

#include "absl/strings/str_cat.h"
#include "common/hash/segment_name.h"
#include "common/kv/segment_layout.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

constexpr uint64_t kTokenPositionMax = uint64_t{1} << 40;
constexpr size_t kSegmentsPerCallMax = 65536;

absl::Status CheckTokenIds(const SegmentIdentity& identity, uint32_t num_tokens) {
  if (identity.token_ids.size() == num_tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a named segment of ", num_tokens, " tokens has ",
                                                 identity.token_ids.size(), " token ids"));
}

}  // namespace

absl::Status CheckTokens(uint32_t tokens) {
  if (tokens > 0 && tokens <= kPrefillSegmentTokens && tokens % kDecodeSegmentTokens == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a segment of ", tokens, " tokens: needs a multiple of ", kDecodeSegmentTokens,
                   " up to ", kPrefillSegmentTokens));
}

absl::Status CheckTokenBegin(uint64_t token_begin) {
  if (token_begin >= kSinkTokens && token_begin < kTokenPositionMax &&
      (token_begin - kSinkTokens) % kDecodeSegmentTokens == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a segment that begins at token ", token_begin,
                                                 ": needs ", kSinkTokens, " plus a multiple of ",
                                                 kDecodeSegmentTokens));
}

absl::Status CheckCount(size_t count) {
  if (count >= 1 && count <= kSegmentsPerCallMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(count, " segments in one call, needs 1 to ", kSegmentsPerCallMax));
}

absl::Status CheckIdentity(const SegmentIdentity& identity, uint32_t num_tokens) {
  RETURN_IF_ERROR(CheckTokenIds(identity, num_tokens));
  if (common::NameSegment(identity.parent, identity.token_ids) == identity.name) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("the name ", identity.name.ToHex(),
                                                 " is not that of its parent and its tokens"));
}

absl::Status CheckRequest(const ReserveRequest& request) {
  if (!request.cached_only || !request.segments.empty()) {
    RETURN_IF_ERROR(CheckCount(request.segments.size()));
  }
  const SegmentWanted* previous = nullptr;
  for (const SegmentWanted& wanted : request.segments) {
    RETURN_IF_ERROR(CheckTokens(wanted.num_tokens));
    if (wanted.identity.has_value()) {
      if (!wanted.identity->token_ids.empty()) {
        RETURN_IF_ERROR(CheckTokenIds(*wanted.identity, wanted.num_tokens));
      }
      if (previous != nullptr && (!previous->identity.has_value() ||
                                  previous->identity->name != wanted.identity->parent)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the segment ", wanted.identity->name.ToHex(),
            " does not follow the one before: named segments must be a chain and lead"));
      }
    }
    previous = &wanted;
  }
  return absl::OkStatus();
}

absl::Status CheckGeometry(const KvGeometry& geometry) {
  RETURN_IF_ERROR(geometry.Validate());
  const SegmentLayout layout(geometry, kPrefillSegmentTokens);
  const uint64_t max_pages = layout.first_kv_page + uint64_t{geometry.num_layers} *
                                                        geometry.num_kv_heads *
                                                        layout.max_pages_per_head;
  if (max_pages < kNoPage) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("KV geometry: a segment of ",
                                                 kPrefillSegmentTokens, " tokens needs up to ",
                                                 max_pages, " pages, the limit is ", kNoPage - 1));
}

}  // namespace retroinfer::kvstore
