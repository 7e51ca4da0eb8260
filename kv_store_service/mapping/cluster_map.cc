#include "kv_store_service/mapping/cluster_map.h"

#include <utility>

#include "common/log/check.h"

namespace retroinfer::kvstore {

void ClusterMap::Insert(uint64_t extent_id, PageId first_page, uint32_t tokens_per_page,
                        std::vector<ClusterEntry> clusters) {
  num_clusters_ += clusters.size();
  const bool is_new =
      segments_.try_emplace(extent_id, Segment{first_page, tokens_per_page, std::move(clusters)})
          .second;
  RI_CHECK(is_new);
}

void ClusterMap::Erase(uint64_t extent_id) {
  const auto segment = segments_.find(extent_id);
  if (segment == segments_.end()) return;
  num_clusters_ -= segment->second.clusters.size();
  segments_.erase(segment);
}

void ClusterMap::Clear() {
  segments_.clear();
  num_clusters_ = 0;
}

std::optional<ClusterPages> ClusterMap::Find(uint64_t extent_id, size_t index) const {
  const auto found = segments_.find(extent_id);
  if (found == segments_.end() || index >= found->second.clusters.size()) return std::nullopt;
  const Segment& segment = found->second;
  const ClusterEntry& entry = segment.clusters[index];
  if (entry.num_tokens == 0) return ClusterPages{};
  const uint32_t count = (entry.num_tokens + segment.tokens_per_page - 1) / segment.tokens_per_page;
  return ClusterPages{{segment.first_page + entry.first_page, count}, entry.num_tokens};
}

size_t ClusterMap::num_clusters(uint64_t extent_id) const {
  const auto segment = segments_.find(extent_id);
  return segment == segments_.end() ? 0 : segment->second.clusters.size();
}

}  // namespace retroinfer::kvstore
