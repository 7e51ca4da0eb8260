// What calls about segments must be like, whatever is in the arena.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/kv/kv_geometry.h"
#include "common/kv/named_segment.h"

namespace retroinfer::kvstore {

// All return INVALID_ARGUMENT with the value and its limits.

// Whether segments have so many tokens.
absl::Status CheckTokens(uint32_t tokens);
// Whether a segment can begin there.
absl::Status CheckTokenBegin(uint64_t token_begin);
// Whether one call can be about so many segments.
absl::Status CheckCount(size_t count);
// Whether the name follows from the parent and the token ids, of which there are `num_tokens`.
// Cost: SHA-256 of the ids.
absl::Status CheckIdentity(const SegmentIdentity& identity, uint32_t num_tokens);
// Whether the sizes of the segments are right, and their names a chain that leads. Identities may
// be without token ids.
absl::Status CheckRequest(const ReserveRequest& request);
// Whether the geometry is valid and its largest segment can be counted in pages.
absl::Status CheckGeometry(const KvGeometry& geometry);

}  // namespace retroinfer::kvstore
