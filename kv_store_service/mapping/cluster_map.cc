#include "kv_store_service/mapping/cluster_map.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/kv/named_segment.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"

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

// Takes pages [begin, end) that hold KV, for what `subject` has there.
absl::Status TakePages(const std::string& subject, uint64_t begin, uint64_t end,
                       uint32_t first_kv_page, std::vector<bool>* taken) {
  if (begin < first_kv_page || end > taken->size()) {
    return absl::InvalidArgumentError(absl::StrCat("segment image: ", subject, " has pages ", begin,
                                                   " to ", end, ", needs pages from ",
                                                   first_kv_page, " to ", taken->size()));
  }
  for (uint64_t page = begin; page < end; ++page) {
    if ((*taken)[page]) {
      return absl::InvalidArgumentError(absl::StrCat("segment image: page ", page, " of ", subject,
                                                     " belongs to another cluster too"));
    }
    (*taken)[page] = true;
  }
  return absl::OkStatus();
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
  if (absl::Status status = Check(entries, taken); !status.ok()) return status;
  std::vector<ClusterPages> clusters(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].num_tokens == 0) continue;
    const ClusterPlace place = PlaceOf(entries[i]);
    const uint64_t num_pages = place.NumPages(entries[i].num_tokens, geometry_.tokens_per_page());
    clusters[i] = {{first_page_ + place.first_page, static_cast<uint32_t>(num_pages)},
                   entries[i].num_tokens};
  }
  return clusters;
}

absl::Status ClusterMap::Check(std::span<const ClusterEntry> entries,
                               std::vector<bool>* taken) const {
  const bool is_packed = geometry_.format.packs_clusters;
  std::optional<uint64_t> first_place;  // of the first cluster that has tokens
  uint64_t tokens = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const ClusterEntry& entry = entries[i];
    if (entry.num_tokens == 0) continue;
    RETURN_IF_ERROR(CheckEntry(i, entry, num_tokens_));
    const uint64_t place = entry.first_place;
    if (is_packed && place != first_place.value_or(place) + tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("segment image: cluster ", i, " begins at place ", place, ", needs ",
                       *first_place + tokens, ", where the one before ends"));
    }
    if (!first_place.has_value()) first_place = place;
    tokens += entry.num_tokens;
    if (is_packed) continue;
    RETURN_IF_ERROR(TakePages(absl::StrCat("cluster ", i), place,
                              place + geometry_.pages_of(entry.num_tokens), layout_.first_kv_page,
                              taken));
  }
  if (tokens != num_tokens_) {
    return absl::InvalidArgumentError(absl::StrCat("segment image: sum of the clusters' tokens is ",
                                                   tokens, ", needs ", num_tokens_));
  }
  if (!is_packed) return absl::OkStatus();
  const uint32_t per_page = geometry_.tokens_per_page();
  if (*first_place % per_page != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment image: a head's clusters begin at place ", *first_place,
                     ", needs the first of a page of ", per_page));
  }
  return TakePages("a head", *first_place / per_page,
                   *first_place / per_page + layout_.max_pages_per_head, layout_.first_kv_page,
                   taken);
}

}  // namespace retroinfer::kvstore
