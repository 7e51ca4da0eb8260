#include "gpu_worker/kv/extent_check.h"

#include "absl/strings/str_cat.h"
#include "common/kv/block_layout.h"
#include "common/kv/named_segment.h"
#include "common/kv/segment_layout.h"

namespace retroinfer {
namespace {

bool IsSegment(uint32_t num_tokens) {
  return num_tokens > 0 && num_tokens <= kPrefillSegmentTokens &&
         num_tokens % kDecodeSegmentTokens == 0;
}

}  // namespace

absl::Status CheckInside(const Extent& extent, uint32_t arena_pages) {
  if (uint64_t{extent.first_page} + extent.num_pages <= arena_pages) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the store answered with an extent of ", extent.num_pages,
                                          " pages from ", extent.first_page, "; the arena has ",
                                          arena_pages));
}

absl::Status CheckHolds(const Extent& extent, const KvGeometry& geometry) {
  const bool is_block = IsBlock(extent.num_tokens);
  if (extent.num_tokens > 0 && (is_block || IsSegment(extent.num_tokens))) {
    const uint32_t least = is_block ? BlockLayout(geometry).num_pages
                                    : SegmentLayout(geometry, extent.num_tokens).first_kv_page;
    if (extent.num_pages >= least) return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("the store answered with ", extent.num_tokens,
                                          " tokens in ", extent.num_pages, " pages"));
}

absl::Status CheckTakes(const Extent& extent, uint32_t num_tokens, const KvGeometry& geometry) {
  const bool takes = IsSegment(num_tokens) && extent.num_tokens == num_tokens &&
                     extent.num_pages >= SegmentLayout(geometry, num_tokens).max_pages;
  if (takes) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("an extent of ", extent.num_pages, " pages for ",
                                          extent.num_tokens, " tokens cannot take a segment of ",
                                          num_tokens));
}

}  // namespace retroinfer
