// Names of segments: a hash chain over their tokens, rooted in everything that changes KV bytes.
//
//   salt hash   SHA-256 of a tenant's cache salt: what is stored and logged instead of the salt
//   root        of the model fingerprint, the salt hash and the version of the segment format
//   sink name   of the root and the sink tokens: the parent of a sequence's first segment
//   name        of the parent's name and the segment's token ids
//
// Equal names mean equal model, tenant, format and tokens from the start of the sequence to the end
// of the segment, and so equal KV.
//
// Two chains begin at the sink name. The chain of segments goes from segment to segment. The *text
// chain* goes in steps of 64 tokens, whatever the segments are: its names, called text names, stand
// for the tokens up to a position, and are the names of exact blocks (common/kv/block_layout.h).
//
// KV that decode steps made, or that was computed behind such KV, is *generated*: its bytes do not
// follow from the tokens alone. The names of generated KV form chains of their own, which leave the
// text chain where the first generated token is, and which depend on how the KV was made.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/hash/sha256.h"

namespace retroinfer::common {

using SegmentName = Hash256;

// Returns the hash of a cache salt, which may be empty (the tenant without a salt).
Hash256 SaltHash(std::string_view salt);

// Returns what stands for a salt in names of KV that is not computed exactly, `how` says how: no
// name of the one is a name of the other.
Hash256 SaltHashOfForm(const Hash256& salt_hash, std::string_view how);

// Returns the hash of a model fingerprint of any length.
Hash256 FingerprintHash(std::string_view fingerprint);

// Returns where the chain begins for one model, tenant and segment format.
SegmentName RootName(std::string_view fingerprint, const Hash256& salt_hash,
                     uint32_t format_version);

// Returns the name of the segment with these tokens behind `parent`. With the root as parent and
// the sink tokens: the sink name.
SegmentName NameSegment(const SegmentName& parent, std::span<const int32_t> token_ids);

// How generated KV was made.
struct Provenance {
  Hash256 made_by;   // hash of the attention settings under which its sequence decoded
  Hash256 sources;   // which of its tokens were prefilled, generated or read, and from where
  SegmentName text;  // text name of its end: equal for equal tokens from the sequence's start on

  friend bool operator==(const Provenance&, const Provenance&) = default;
};

// Returns the name of generated KV of these tokens behind `parent`: the name of the generated KV
// before it, or the text name of where it begins.
SegmentName NameGenerated(const SegmentName& parent, std::span<const int32_t> token_ids,
                          const Provenance& provenance);

}  // namespace retroinfer::common
