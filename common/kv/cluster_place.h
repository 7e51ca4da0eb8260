// Where the tokens of a cluster lie in its pages.
#pragma once

#include <cstdint>

namespace retroinfer {

// A cluster's tokens, in consecutive pages: from token `skipped` of the first one on. The tokens
// before that, if any, are those of the cluster before it, in formats that pack clusters.
struct ClusterPlace {
  // `first_place`: of a ClusterEntry or a MetaEntry. `places_per_page`: of the KvGeometry.
  constexpr ClusterPlace(uint32_t first_place, uint32_t places_per_page)
      : first_page(first_place / places_per_page), skipped(first_place % places_per_page) {}

  // Pages that have a token of the cluster.
  constexpr uint64_t NumPages(uint32_t num_tokens, uint32_t tokens_per_page) const {
    if (num_tokens == 0) return 0;
    return (uint64_t{skipped} + num_tokens + tokens_per_page - 1) / tokens_per_page;
  }
  // The cluster's first token in its page `index`, and how many of its tokens that page has.
  // REQUIRES: the page has one.
  constexpr uint32_t FirstIn(uint32_t index) const { return index == 0 ? skipped : 0; }
  constexpr uint32_t NumIn(uint32_t index, uint32_t num_tokens, uint32_t tokens_per_page) const {
    const uint32_t left = skipped + num_tokens - index * tokens_per_page;
    return (left < tokens_per_page ? left : tokens_per_page) - FirstIn(index);
  }

  uint32_t first_page;  // counted as the first place is: from the extent's, or the arena's
  uint32_t skipped;     // tokens of the first page
};

}  // namespace retroinfer
