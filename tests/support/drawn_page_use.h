// Which pages the decode steps of synthetic contexts look up (gpu_worker/measuring/synthetic),
// without a model, keys or queries: for tests and benchmarks of what stays in the block cache.
#pragma once

#include <cstdint>
#include <vector>

#include "common/kv/kv_geometry.h"

namespace retroinfer::test_support {

// Contexts of the same length, of an 8B shape with fewer layers: as many KV heads, clusters and
// retrieved clusters, and reuse by the layers of a recorded trace that lie as deep.
class DrawnPageUse {
 public:
  static constexpr uint32_t kHeads = 8;

  // REQUIRES: num_layers and num_sequences >= 1; context_tokens of at least two segments.
  DrawnPageUse(uint32_t num_layers, uint32_t num_sequences, int64_t context_tokens);

  uint32_t num_layers() const { return num_layers_; }
  uint32_t num_sequences() const { return num_sequences_; }
  uint32_t num_clusters() const { return static_cast<uint32_t>(first_page_[0].size() - 1); }
  uint32_t pages_of_sequence() const { return num_layers_ * pages_of_layer_; }
  uint32_t num_pages() const { return num_sequences_ * pages_of_sequence(); }
  // Clusters that a KV head retrieves in a step.
  uint32_t num_retrieved() const { return num_retrieved_; }
  uint32_t max_pages_of_cluster() const { return max_pages_of_cluster_; }

  // Pages of a cluster: the first one and how many.
  struct Pages {
    PageId first;
    uint32_t count;
  };
  Pages PagesOf(uint32_t sequence, uint32_t layer, uint32_t head, uint32_t cluster) const;
  // The clusters that a step retrieves, each once. Steps repeat after 1,024.
  std::vector<int32_t> Retrieved(uint32_t sequence, uint32_t layer, uint32_t head,
                                 uint64_t step) const;

 private:
  const uint32_t num_layers_;
  const uint32_t num_sequences_;
  uint32_t num_retrieved_ = 0;
  uint32_t clusters_of_cell_ = 0;
  uint32_t cells_of_step_ = 0;
  uint32_t num_sets_ = 0;
  uint32_t pages_of_layer_ = 0;
  uint32_t max_pages_of_cluster_ = 0;
  std::vector<uint32_t> cells_;                    // as SyntheticTables
  std::vector<std::vector<uint32_t>> first_page_;  // [heads][clusters + 1], from the layer's first
};

}  // namespace retroinfer::test_support
