// Chains of named segments, for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "common/hash/segment_name.h"
#include "common/kv/named_segment.h"
#include "common/kv/segment_layout.h"

namespace retroinfer::kvstore {

// Returns the identities of `num_segments` segments of `num_tokens` tokens each. Equal prefixes of
// `texts` give equal names: segment i has tokens derived from texts[i].
inline std::vector<SegmentIdentity> NamedChain(const std::vector<int32_t>& texts,
                                               uint32_t num_tokens = kDecodeSegmentTokens,
                                               std::string_view salt = "") {
  const common::Hash256 salt_hash = common::SaltHash(salt);
  const std::vector<int32_t> sink(kSinkTokens, 1);
  common::SegmentName parent =
      common::NameSegment(common::RootName("model", salt_hash, kSegmentVersion), sink);
  std::vector<SegmentIdentity> chain;
  for (const int32_t text : texts) {
    SegmentIdentity& identity = chain.emplace_back();
    identity.parent = parent;
    identity.salt_hash = salt_hash;
    for (uint32_t i = 0; i < num_tokens; ++i) {
      identity.token_ids.push_back(text * 1000 + static_cast<int32_t>(i));
    }
    identity.name = parent = common::NameSegment(parent, identity.token_ids);
  }
  return chain;
}

// A request for such a chain and `num_unnamed` segments of the same size behind it.
inline ReserveRequest NamedRequest(uint64_t sequence_id, const std::vector<SegmentIdentity>& chain,
                                   int num_unnamed = 0) {
  ReserveRequest request{.sequence_id = sequence_id};
  for (const SegmentIdentity& identity : chain) {
    request.segments.push_back({static_cast<uint32_t>(identity.token_ids.size()), identity});
  }
  for (int i = 0; i < num_unnamed; ++i) {
    request.segments.push_back({kDecodeSegmentTokens, std::nullopt});
  }
  return request;
}

}  // namespace retroinfer::kvstore
