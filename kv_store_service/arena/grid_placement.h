// Places extents so that the arena does not fall to pieces.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv_store_service/arena/arena_piece.h"

namespace retroinfer::kvstore {

// The arena is divided twice. From its beginning into cells of `large_pages`: a large extent takes
// a whole cell, so that those that come and go leave room for others of their length. And from its
// end into slots of each smaller length: small extents take slots, and stay together: a cell that
// holds something in use already, or what is left behind the last cell, is preferred to one that a
// large extent could have. Before that come gaps: free runs in such cells that have room for just
// one, wherever the slots are. What a committed segment leaves of a large extent is one, where
// pages hold many tokens.
struct GridPlacement {
  uint32_t num_pages = 0;    // of the arena
  uint32_t large_pages = 0;  // > 0; extents of that length are large, shorter ones are small
  uint64_t limit = 0;        // highest rank that may be given up
  // Highest rank that small extents give up to stay together. What is free comes before that; where
  // there is neither they take the slot of the lowest rank.
  uint64_t limit_together = 0;

  // Adds to `visits` how many pieces and slots were looked at.
  //
  // Returns: where the extents are, in the order of `counts`: the large ones where the rank is
  // lowest. Nothing if there are not enough cells or slots, or an extent is longer than a cell;
  // that says nothing of whether there is room elsewhere.
  //
  // REQUIRES: the pieces are as ArenaPiece says; all counts > 0.
  // Cost:     O((pieces + slots) * lengths + slots * log slots).
  std::optional<std::vector<PageRun>> Place(std::span<const ArenaPiece> pieces,
                                            std::span<const uint32_t> counts,
                                            uint64_t* visits) const;
};

}  // namespace retroinfer::kvstore
