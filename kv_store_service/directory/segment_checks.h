// What calls about segments must be like, whatever is in the arena.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/kv/kv_geometry.h"
#include "common/kv/named_segment.h"

namespace retroinfer::kvstore {

// All return INVALID_ARGUMENT with the value and its limits.

// Whether segments or blocks have so many tokens.
absl::Status CheckTokens(uint32_t tokens);
// Whether a segment, or a block, of so many tokens can begin there.
absl::Status CheckTokenBegin(uint64_t token_begin, uint32_t num_tokens);
// Whether one call can be about so many segments.
absl::Status CheckCount(size_t count);
// Whether the name follows from the parent, the token ids, of which there are `num_tokens`, and,
// of generated KV, how it was made.
// Cost: SHA-256 of the ids.
absl::Status CheckIdentity(const SegmentIdentity& identity, uint32_t num_tokens);
// Whether the sizes of the segments are right, and their names a chain that leads. Identities may
// be without token ids. With rows: whether there are no segments, and the rows are in order.
absl::Status CheckRequest(const ReserveRequest& request);
// Whether there are at most kRowTokensMax tokens, a text name for each position that rows may begin
// at, and segments in order of position.
absl::Status CheckRows(const RowsWanted& rows);
inline constexpr size_t kRowTokensMax = size_t{1} << 21;
// Whether the geometry is valid and its largest segment can be counted in pages.
absl::Status CheckGeometry(const KvGeometry& geometry);

}  // namespace retroinfer::kvstore
