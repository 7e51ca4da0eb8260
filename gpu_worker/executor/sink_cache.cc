#include "gpu_worker/executor/sink_cache.h"

#include <algorithm>
#include <numeric>

#include "common/log/check.h"
#include "common/status/status_macros.h"

namespace retroinfer {

MemoryNeed SinkCache::MemoryOf(const KvGeometry& geometry) {
  return MemoryNeed(MemoryPurpose::kActivations,
                    kSinks * (DensePoolView::BlockBytes(geometry) + sizeof(DenseBlockId)));
}

absl::StatusOr<SinkCache> SinkCache::Create(const Parts& parts, const KvGeometry& geometry) {
  SinkCache cache(parts, geometry);
  Device& device = *parts.device;
  ASSIGN_OR_RETURN(cache.blocks_, device.Allocate(kSinks * DensePoolView::BlockBytes(geometry),
                                                  MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(cache.host_ids_, device.AllocateHost(kSinks * sizeof(DenseBlockId)));
  ASSIGN_OR_RETURN(cache.ids_,
                   device.Allocate(kSinks * sizeof(DenseBlockId), MemoryPurpose::kActivations));
  const std::span<DenseBlockId> ids = cache.host_ids_.as<DenseBlockId>();
  std::iota(ids.begin(), ids.end(), 0);
  RETURN_IF_ERROR(device.Upload(*parts.stream, std::as_bytes(ids), cache.ids_.bytes()));
  return cache;
}

std::optional<size_t> SinkCache::PlaceOf(const Tokens& tokens) const {
  const auto found = std::ranges::find_if(
      sinks_, [&tokens](const Sink& sink) { return sink.last_use > 0 && sink.tokens == tokens; });
  if (found == sinks_.end()) return std::nullopt;
  return static_cast<size_t>(found - sinks_.begin());
}

size_t SinkCache::LeastRecentlyUsed() const {
  return static_cast<size_t>(std::ranges::min_element(sinks_, {}, &Sink::last_use) -
                             sinks_.begin());
}

void SinkCache::Begin(std::span<const std::span<const int32_t>> prompts) {
  for (Sink& sink : sinks_) {
    if (!sink.is_whole) sink = {};
  }
  group_.clear();
  ++num_groups_;
  knows_all_ = !prompts.empty();
  for (const std::span<const int32_t> prompt : prompts) {
    RI_CHECK(prompt.size() >= kSinkTokens);
    Tokens tokens;
    std::copy_n(prompt.begin(), kSinkTokens, tokens.begin());
    std::optional<size_t> place = PlaceOf(tokens);
    if (!place.has_value()) {
      knows_all_ = false;
      const size_t oldest = LeastRecentlyUsed();
      // A sink of this group is not given up for another one.
      if (sinks_[oldest].last_use == num_groups_) {
        group_.emplace_back(std::nullopt);
        continue;
      }
      sinks_[oldest] = {.tokens = tokens, .is_whole = false, .last_use = 0};
      place = oldest;
    }
    Sink& sink = sinks_[*place];
    knows_all_ &= sink.is_whole;
    sink.last_use = num_groups_;
    group_.push_back(place);
  }
}

absl::Status SinkCache::Read(size_t i, uint32_t layer, const LayerKv& out, int64_t row) {
  RI_CHECK(knows_all_);
  return parts_.ops->attention().ReadDense(*parts_.stream, {.pool = Pool(),
                                                            .layer = layer,
                                                            .block_ids = IdOf(*group_[i]),
                                                            .num_tokens = kSinkTokens,
                                                            .out = out,
                                                            .first_token = row});
}

absl::Status SinkCache::Write(size_t i, uint32_t layer, const LayerKv& in, int64_t row) {
  RI_CHECK(!knows_all_);
  if (!group_[i].has_value()) return absl::OkStatus();
  return parts_.ops->attention().FillDense(*parts_.stream, {.in = in,
                                                            .first_token = row,
                                                            .num_tokens = kSinkTokens,
                                                            .pool = Pool(),
                                                            .layer = layer,
                                                            .block_ids = IdOf(*group_[i])});
}

void SinkCache::End() {
  for (const std::optional<size_t> place : group_) {
    if (place.has_value()) sinks_[*place].is_whole = true;
  }
}

}  // namespace retroinfer
