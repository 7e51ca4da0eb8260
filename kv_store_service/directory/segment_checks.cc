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
  if (tokens > 0 && IsBlock(tokens)) return absl::OkStatus();
  if (tokens > 0 && tokens <= kPrefillSegmentTokens && tokens % kDecodeSegmentTokens == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a segment of ", tokens, " tokens: needs a multiple of ", kDecodeSegmentTokens, " up to ",
      kPrefillSegmentTokens, ", or 1 to ", kDenseBlockTokens, " tokens of a block"));
}

absl::Status CheckTokenBegin(uint64_t token_begin, uint32_t num_tokens) {
  const uint32_t step = IsBlock(num_tokens) ? kDenseBlockTokens : kDecodeSegmentTokens;
  if (token_begin >= kSinkTokens && token_begin < kTokenPositionMax &&
      (token_begin - kSinkTokens) % step == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a ", IsBlock(num_tokens) ? "block" : "segment",
                                                 " that begins at token ", token_begin, ": needs ",
                                                 kSinkTokens, " plus a multiple of ", step));
}

absl::Status CheckCount(size_t count) {
  if (count >= 1 && count <= kSegmentsPerCallMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(count, " segments in one call, needs 1 to ", kSegmentsPerCallMax));
}

absl::Status CheckIdentity(const SegmentIdentity& identity, uint32_t num_tokens) {
  RETURN_IF_ERROR(CheckTokenIds(identity, num_tokens));
  const common::SegmentName name =
      identity.provenance.has_value()
          ? common::NameGenerated(identity.parent, identity.token_ids, *identity.provenance)
          : common::NameSegment(identity.parent, identity.token_ids);
  if (name == identity.name) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the name ", identity.name.ToHex(), " is not that of its parent and its tokens",
                   identity.provenance.has_value() ? " and of how they were generated" : ""));
}

absl::Status CheckRows(const RowsWanted& rows) {
  RETURN_IF_ERROR(CheckTokenBegin(rows.token_begin, kDenseBlockTokens));
  if (rows.token_ids.size() > kRowTokensMax) {
    return absl::InvalidArgumentError(absl::StrCat("rows of ", rows.token_ids.size(),
                                                   " tokens, at most ", kRowTokensMax,
                                                   " are looked for at once"));
  }
  // The prompt has at least one token more, so that there may be one more name.
  const size_t num_texts = rows.token_ids.size() / kDenseBlockTokens + 1;
  if (rows.texts.size() < num_texts || rows.texts.size() > num_texts + 1) {
    return absl::InvalidArgumentError(absl::StrCat("rows of ", rows.token_ids.size(),
                                                   " tokens with ", rows.texts.size(),
                                                   " text names, needs ", num_texts));
  }
  if (rows.segments.size() > kSegmentsPerCallMax) return CheckCount(rows.segments.size());
  uint64_t position = rows.token_begin;
  size_t num_here = 0;  // that begin at `position`
  for (const RowsWanted::Segment& segment : rows.segments) {
    RETURN_IF_ERROR(CheckTokens(segment.num_tokens));
    RETURN_IF_ERROR(CheckTokenBegin(segment.token_begin, segment.num_tokens));
    num_here = segment.token_begin == position ? num_here + 1 : 1;
    if (segment.token_begin < position || IsBlock(segment.num_tokens) ||
        num_here > kPrefillSegmentTokens / kDecodeSegmentTokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the segments of rows must be in order of position, from the rows' first token on, at "
          "most one of each size, and no blocks; there is one of ",
          segment.num_tokens, " tokens at ", segment.token_begin, " behind ", position));
    }
    position = segment.token_begin;
  }
  return absl::OkStatus();
}

absl::Status CheckRequest(const ReserveRequest& request) {
  if (request.rows.has_value()) {
    if (request.segments.empty()) return CheckRows(*request.rows);
    return absl::InvalidArgumentError("a request for rows has no segments");
  }
  RETURN_IF_ERROR(CheckTokenBegin(request.token_begin, kDenseBlockTokens));
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
      if (previous != nullptr && previous->identity->provenance.has_value() &&
          !wanted.identity->provenance.has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the segment ", wanted.identity->name.ToHex(),
                         " is to be exact, but follows a generated one"));
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
