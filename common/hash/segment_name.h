// Names of segments: a hash chain over their tokens, rooted in everything that changes KV bytes.
//
//   salt hash   SHA-256 of a tenant's cache salt: what is stored and logged instead of the salt
//   root        of the model fingerprint, the salt hash and the version of the segment format
//   sink name   of the root and the sink tokens: the parent of a sequence's first segment
//   name        of the parent's name and the segment's token ids
//
// Equal names mean equal model, tenant, format and tokens from the start of the sequence to the end
// of the segment, and so equal KV.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/hash/sha256.h"

namespace retroinfer::common {

using SegmentName = Hash256;

// Returns the hash of a cache salt, which may be empty (the tenant without a salt).
Hash256 SaltHash(std::string_view salt);

// Returns the hash of a model fingerprint of any length.
Hash256 FingerprintHash(std::string_view fingerprint);

// Returns where the chain begins for one model, tenant and segment format.
SegmentName RootName(std::string_view fingerprint, const Hash256& salt_hash,
                     uint32_t format_version);

// Returns the name of the segment with these tokens behind `parent`. With the root as parent and
// the sink tokens: the sink name.
SegmentName NameSegment(const SegmentName& parent, std::span<const int32_t> token_ids);

}  // namespace retroinfer::common
