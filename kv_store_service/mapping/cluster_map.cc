#include "kv_store_service/mapping/cluster_map.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/kv/named_segment.h"
#include "common/log/check.h"

namespace retroinfer::kvstore {
namespace {

absl::Status CheckEntry(size_t index, const ClusterEntry& cluster, uint32_t token_count) {
  if (cluster.num_tokens > token_count) {
    return absl::InvalidArgumentError(absl::StrCat("segment image: cluster ", index, " has ",
                                                   cluster.num_tokens, " tokens, the segment ",
                                                   token_count));
  }
  if (cluster.radius >= 0 && std::isfinite(cluster.radius)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("segment image: cluster ", index, " has radius ",
                                                 cluster.radius, ", needs a finite one >= 0"));
}

}  // namespace

uint64_t NumClusters(const KvGeometry& geometry, uint32_t num_tokens) {
  if (IsBlock(num_tokens)) return 0;
  return uint64_t{geometry.num_layers} * geometry.num_kv_heads * (num_tokens / kTokensPerCluster);
}

ClusterMap::ClusterMap(std::span<const std::byte> extent, PageId first_page,
                       const KvGeometry& geometry, uint32_t num_tokens)
    : extent_(extent),
      first_page_(first_page),
      geometry_(geometry),
      num_tokens_(num_tokens),
      layout_(geometry, num_tokens),
      num_heads_(size_t{geometry.num_layers} * geometry.num_kv_heads) {
  RI_CHECK(extent_.size() >= layout_.first_kv_page * layout_.page_bytes);
}

absl::StatusOr<std::vector<ClusterPages>> ClusterMap::Find(size_t head,
                                                           std::vector<bool>* taken) const {
  RI_CHECK(head < num_heads_);
  // One head's entries are copied before any is checked: the worker may be changing them.
  std::vector<ClusterEntry> entries(layout_.num_clusters);
  const size_t row_bytes = entries.size() * sizeof(ClusterEntry);
  std::memcpy(entries.data(), extent_.data() + layout_.clusters_offset + head * row_bytes,
              row_bytes);
  std::vector<ClusterPages> clusters(entries.size());
  uint64_t tokens = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const ClusterEntry& entry = entries[i];
    if (entry.num_tokens == 0) continue;
    if (absl::Status status = CheckEntry(i, entry, num_tokens_); !status.ok()) return status;
    tokens += entry.num_tokens;
    const uint64_t end = uint64_t{entry.first_page} + geometry_.pages_of(entry.num_tokens);
    if (entry.first_page < layout_.first_kv_page || end > taken->size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("segment image: cluster ", i, " has pages ", entry.first_page, " to ", end,
                       ", needs pages from ", layout_.first_kv_page, " to ", taken->size()));
    }
    for (uint64_t page = entry.first_page; page < end; ++page) {
      if ((*taken)[page]) {
        return absl::InvalidArgumentError(absl::StrCat("segment image: page ", page, " of cluster ",
                                                       i, " belongs to another cluster too"));
      }
      (*taken)[page] = true;
    }
    clusters[i] = {{first_page_ + entry.first_page, static_cast<uint32_t>(end - entry.first_page)},
                   entry.num_tokens};
  }
  if (tokens == num_tokens_) return clusters;
  return absl::InvalidArgumentError(absl::StrCat("segment image: sum of the clusters' tokens is ",
                                                 tokens, ", needs ", num_tokens_));
}

}  // namespace retroinfer::kvstore
