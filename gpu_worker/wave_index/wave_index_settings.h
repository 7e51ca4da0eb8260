// What the wave index of a server can be told. Everything here but the selection is part of the
// fingerprint of a segment: it changes its bytes.
#pragma once

#include <cstdint>

namespace retroinfer {

struct WaveIndexSettings {
  // Contexts shorter than this, in tokens, are attended exactly. At least 0.
  int64_t dense_below = 8192;
  // Rounds of spherical k-means. The paper's is 10.
  int32_t kmeans_rounds = 10;
  // Subtracts a segment's mean key before clustering, see ops/index/cluster_keys.h. The paper does
  // not.
  bool centre_keys = true;
  // Share of a cluster's radius that counts in its rank, see ops/index/centroid_score.h. The
  // paper's is 0.
  float radius_weight = 0.5f;
  // Ratios alone starve short contexts: so many clusters are retrieved, and at least as many
  // estimated as retrieved, where there are so many.
  int32_t min_retrieved = 64;
  // Where tokens have codes: the clusters whose codes a step reads, as a share and at least so
  // many. Retrieved is then a share of the tokens, in pages of these clusters.
  double candidate_ratio = 0;
  int32_t min_candidates = 0;
};

}  // namespace retroinfer
