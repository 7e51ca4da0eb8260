// Invariants:
// * links_[i] follows from links_[i - 1], the tokens and the sources of segment i alone: asking
//   earlier or later, or in other parts, gives the same names.
// * A link without a name is followed by links without names.
#include "gpu_worker/kv/kv_lineage.h"

#include <algorithm>
#include <utility>

#include "common/log/check.h"

namespace retroinfer {
namespace {

// What rows are called in SourcesOf() that decode steps made. Exact and prefilled ones are zero.
common::Hash256 DecodedRows() { return common::Sha256("retroinfer decoded rows").Finish(); }
// The same of rows that share what they retrieve. Where such rows begin their runs do, so that
// these follow from the number of rows in one.
common::Hash256 RowsOfRuns(int64_t rows) {
  return common::Sha256("retroinfer rows of runs").AddU64(static_cast<uint64_t>(rows)).Finish();
}

}  // namespace

void KvLineage::SetCached(std::span<const CachedRun> cached, size_t num_segments) {
  cached_.assign(cached.begin(), cached.end());
  num_cached_segments_ = num_segments;
  exact_end_ = std::min(prompt_tokens(), alike_end_);
  for (const CachedRun& run : cached_) {
    if (run.extent.generated.has_value()) exact_end_ = std::min(exact_end_, run.token_begin);
  }
  links_.clear();
}

std::optional<common::SegmentName> KvLineage::GeneratedOfCached() const {
  if (num_cached_segments_ == 0) return std::nullopt;
  return cached_[num_cached_segments_ - 1].extent.generated;
}

std::vector<int32_t> KvLineage::Tokens(int64_t begin, int64_t end) const {
  RI_CHECK(end <= prompt_tokens() + std::ssize(generated_));
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(end - begin));
  for (int64_t i = begin; i < end; ++i) {
    tokens.push_back(i < prompt_tokens() ? prompt_[static_cast<size_t>(i)]
                                         : generated_[static_cast<size_t>(i - prompt_tokens())]);
  }
  return tokens;
}

common::SegmentName KvLineage::TextAt(int64_t position) const {
  const auto index = static_cast<size_t>((position - kSinkTokens) / kDenseBlockTokens);
  const size_t of_prompt = prefix_->texts.size();
  const auto at = [&](size_t i) {
    return i < of_prompt ? prefix_->texts[i] : texts_[i - of_prompt];
  };
  while (of_prompt + texts_.size() <= index) {
    const size_t next = of_prompt + texts_.size();
    const int64_t begin = kSinkTokens + static_cast<int64_t>(next - 1) * kDenseBlockTokens;
    texts_.push_back(common::NameSegment(at(next - 1), Tokens(begin, begin + kDenseBlockTokens)));
  }
  const int64_t begin = kSinkTokens + static_cast<int64_t>(index) * kDenseBlockTokens;
  if (begin == position) return at(index);
  return common::NameSegment(at(index), Tokens(begin, position));
}

common::Hash256 KvLineage::SourcesOf(int64_t begin, int64_t end) const {
  common::Sha256 hash("retroinfer sources of KV");
  std::pair<int64_t, common::Hash256> pending{begin, {}};  // end and kind of neighbouring rows
  const auto add = [&](int64_t to, const common::Hash256& kind) {
    to = std::clamp(to, begin, end);
    if (to <= pending.first) return;
    if (pending.first > begin && kind != pending.second) {
      hash.AddU64(static_cast<uint64_t>(pending.first - begin)).Add(pending.second);
    }
    pending = {to, kind};
  };
  for (const CachedRun& run : cached_) {
    if (!run.extent.generated.has_value()) continue;
    add(run.token_begin, {});
    add(run.token_end(), *run.extent.generated);
  }
  add(prompt_tokens(), {});
  if (runs_.num_tokens > 0) add(prompt_tokens() + runs_.num_tokens, RowsOfRuns(runs_.rows));
  add(end, DecodedRows());
  return hash.AddU64(static_cast<uint64_t>(pending.first - begin)).Add(pending.second).Finish();
}

SegmentIdentity KvLineage::Generated(const std::optional<common::SegmentName>& before,
                                     int64_t begin, int64_t end) const {
  SegmentIdentity identity{.name = {},
                           .parent = before.has_value() ? *before : TextAt(begin),
                           .salt_hash = prefix_->salt_hash,
                           .token_ids = Tokens(begin, end)};
  identity.provenance = common::Provenance{
      .made_by = *made_by_, .sources = SourcesOf(begin, end), .text = TextAt(end)};
  identity.name = common::NameGenerated(identity.parent, identity.token_ids, *identity.provenance);
  return identity;
}

std::optional<common::SegmentName> KvLineage::GeneratedBefore(
    size_t index, std::span<const Extent> extents) const {
  if (index == 0) return std::nullopt;
  const Link& link = LinkOf(index - 1, extents);
  return link.is_generated ? std::optional(link.name) : std::nullopt;
}

const KvLineage::Link& KvLineage::LinkOf(size_t index, std::span<const Extent> extents) const {
  while (links_.size() <= index) {
    const size_t next = links_.size();
    Link& link = links_.emplace_back();
    if (next < num_cached_segments_) {
      const Extent& extent = cached_[next].extent;
      link = {true, extent.generated.value_or(prefix_->names[next]), extent.generated.has_value()};
      continue;
    }
    const std::optional<SegmentIdentity> identity = OfSegment(next, extents);
    if (identity.has_value()) link = {true, identity->name, identity->provenance.has_value()};
    // OfSegment() asks for earlier links only, so the reference is still good.
  }
  return links_[index];
}

std::optional<SegmentIdentity> KvLineage::OfSegment(size_t index,
                                                    std::span<const Extent> extents) const {
  if (!names_any()) return std::nullopt;
  int64_t begin = kSinkTokens;
  for (size_t i = 0; i < index; ++i) begin += extents[i].num_tokens;
  const int64_t end = begin + extents[index].num_tokens;
  Link before{true, prefix_->sink_name, false};
  if (index > 0) before = LinkOf(index - 1, extents);
  if (!before.is_named) return std::nullopt;
  if (end <= exact_end_) {
    SegmentIdentity identity{.name = {},
                             .parent = before.name,
                             .salt_hash = prefix_->salt_hash,
                             .token_ids = Tokens(begin, end)};
    identity.name = common::NameSegment(identity.parent, identity.token_ids);
    return identity;
  }
  if (!made_by_.has_value()) return std::nullopt;
  return Generated(before.is_generated ? std::optional(before.name) : std::nullopt, begin, end);
}

std::vector<NamedBlock> KvLineage::Blocks(size_t num_segments, std::span<const Extent> extents,
                                          int64_t begin, int64_t end, int64_t from) const {
  std::vector<NamedBlock> blocks;
  if (!names_any()) return blocks;
  if (num_segments > 0 && !LinkOf(num_segments - 1, extents).is_named) return blocks;
  std::optional<common::SegmentName> before = GeneratedBefore(num_segments, extents);
  // What was read is there already, in blocks or in whole segments of them, as long as it follows
  // the same KV here as there.
  const auto first = std::find_if(cached_.begin(), cached_.end(),
                                  [&](const CachedRun& run) { return run.token_begin == begin; });
  const bool is_same = first == cached_.begin()
                           ? !before.has_value()
                           : first != cached_.end() && std::prev(first)->extent.generated == before;
  for (auto run = first; is_same && run != cached_.end(); ++run) {
    if (run->num_tokens() % kDenseBlockTokens != 0 || run->token_end() > end) break;
    before = run->extent.generated;
    begin = run->token_end();
  }
  for (int64_t next; begin < end; begin = next) {
    next = std::min<int64_t>(begin + kDenseBlockTokens, end);
    const bool is_exact = next <= exact_end_;
    if (!is_exact && !made_by_.has_value()) break;
    NamedBlock block{.token_begin = begin, .identity = {}};
    if (is_exact) {
      block.identity = {.name = TextAt(next),
                        .parent = TextAt(begin),
                        .salt_hash = prefix_->salt_hash,
                        .token_ids = Tokens(begin, next)};
    } else {
      block.identity = Generated(before, begin, next);
      before = block.identity.name;
    }
    if (begin >= from) blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace retroinfer
