// Invariants: offset_ is a multiple of 64 until ended_; generated_ is set from the first generated
// piece on; each piece holds the request's tokens, whatever names claim, as far as its own tokens
// are known.
#include "kv_store_service/directory/row_walk.h"

#include <algorithm>

namespace retroinfer::kvstore {
namespace {

bool IsBetter(const RowCandidate& a, const RowCandidate& b) {
  if (a.num_tokens != b.num_tokens) return a.num_tokens > b.num_tokens;
  // A conversation goes on as it was held, whoever has computed its text since.
  if (a.provenance.has_value() != b.provenance.has_value()) return a.provenance.has_value();
  // Before names, which differ from tenant to tenant: the same conversation goes on alike for all.
  if (a.provenance.has_value() && a.provenance->sources != b.provenance->sources) {
    return a.provenance->sources < b.provenance->sources;
  }
  if (a.name != b.name) return a.name < b.name;
  return a.place < b.place;
}

}  // namespace

RowWalk::RowWalk(const RowsWanted& rows, const std::optional<common::Hash256>& made_by,
                 const RowSource& source)
    : rows_(rows), made_by_(made_by), source_(source), generated_(rows.generated) {}

std::optional<RowCandidate> RowWalk::Next() {
  if (ended_ || offset_ >= rows_.token_ids.size()) return std::nullopt;
  std::optional<RowCandidate> best;
  if (generated_.has_value()) {
    ConsiderChildren(*generated_, &best);
  } else {
    ConsiderExact(&best);
  }
  if (!best.has_value()) return std::nullopt;
  offset_ += best->num_tokens;
  ended_ = best->num_tokens < kDenseBlockTokens;
  if (best->provenance.has_value()) generated_ = best->name;
  return best;
}

void RowWalk::ConsiderExact(std::optional<RowCandidate>* best) {
  const uint64_t position = rows_.token_begin + offset_;
  const size_t place = offset_ / kDenseBlockTokens;
  while (next_segment_ < rows_.segments.size() &&
         rows_.segments[next_segment_].token_begin < position) {
    ++next_segment_;
  }
  for (size_t i = next_segment_;
       i < rows_.segments.size() && rows_.segments[i].token_begin == position; ++i) {
    const auto segment = source_.Named(rows_.segments[i].name);
    if (!segment.has_value() || segment->provenance.has_value()) continue;
    if (segment->num_tokens == rows_.segments[i].num_tokens) Consider(*segment, best);
  }
  if (place + 1 < rows_.texts.size()) {
    const auto block = source_.Named(rows_.texts[place + 1]);
    const bool is_block = block.has_value() && !block->provenance.has_value() &&
                          block->num_tokens == kDenseBlockTokens;
    if (is_block) Consider(*block, best);
  }
  ConsiderChildren(rows_.texts[place], best);
}

void RowWalk::ConsiderChildren(const common::SegmentName& parent,
                               std::optional<RowCandidate>* best) const {
  for (const RowCandidate& child : source_.Children(parent)) {
    if (child.provenance.has_value()) {
      if (made_by_.has_value() && child.provenance->made_by == *made_by_) Consider(child, best);
    } else if (child.num_tokens < kDenseBlockTokens && !generated_.has_value()) {
      Consider(child, best);
    }
  }
}

void RowWalk::Consider(const RowCandidate& candidate, std::optional<RowCandidate>* best) const {
  if (best->has_value() && !IsBetter(candidate, **best)) return;
  if (Fits(candidate)) *best = candidate;
}

bool RowWalk::Fits(const RowCandidate& candidate) const {
  const uint64_t left = rows_.token_ids.size() - offset_;
  if (candidate.num_tokens == 0 || candidate.num_tokens > left) return false;
  if (candidate.token_begin.value_or(rows_.token_begin + offset_) != rows_.token_begin + offset_) {
    return false;
  }
  if (!candidate.token_ids.empty()) {
    const auto wanted = std::span(rows_.token_ids).subspan(offset_, candidate.num_tokens);
    if (!std::ranges::equal(candidate.token_ids, wanted)) return false;
  }
  // A full exact one was found by its name. Others say, by names, which tokens they have.
  if (candidate.provenance.has_value()) {
    return candidate.provenance->text == TextBehind(candidate.num_tokens);
  }
  return candidate.num_tokens >= kDenseBlockTokens ||
         candidate.name == TextBehind(candidate.num_tokens);
}

common::SegmentName RowWalk::TextBehind(uint32_t num_tokens) const {
  const uint64_t end = offset_ + num_tokens;
  const uint64_t begin = (end - 1) / kDenseBlockTokens * kDenseBlockTokens;  // of the last block
  const size_t place = begin / kDenseBlockTokens;
  if (end == begin + kDenseBlockTokens && place + 1 < rows_.texts.size()) {
    return rows_.texts[place + 1];
  }
  return common::NameSegment(rows_.texts[place],
                             std::span(rows_.token_ids).subspan(begin, end - begin));
}

std::optional<RowCandidate> FindGenerated(const RowSource& source,
                                          const common::SegmentName& parent,
                                          const SegmentWanted& wanted, uint64_t token_begin,
                                          const common::Hash256& made_by) {
  std::optional<RowCandidate> best;
  if (!wanted.text.has_value()) return best;
  for (const RowCandidate& child : source.Children(parent)) {
    const bool fits = child.provenance.has_value() && child.provenance->made_by == made_by &&
                      child.provenance->text == *wanted.text &&
                      child.num_tokens == wanted.num_tokens &&
                      child.token_begin.value_or(token_begin) == token_begin &&
                      child.salt_hash == wanted.identity->salt_hash &&
                      (child.token_ids.empty() || wanted.identity->token_ids.empty() ||
                       std::ranges::equal(child.token_ids, wanted.identity->token_ids));
    if (fits && (!best.has_value() || IsBetter(child, *best))) best = child;
  }
  return best;
}

std::optional<common::SegmentName> GeneratedParent(const ReserveRequest& request, size_t index,
                                                   const std::optional<HeldSegment>& before) {
  if (!request.made_by.has_value() || !request.segments[index].identity.has_value()) {
    return std::nullopt;
  }
  if (index == 0) return request.segments[0].identity->parent;
  if (!before.has_value()) return std::nullopt;
  if (before->is_generated) return before->name;
  return request.segments[index - 1].text;
}

bool MayBeFoundByName(const SegmentWanted& wanted, const std::optional<HeldSegment>& before) {
  return wanted.identity.has_value() &&
         (!before.has_value() || !before->is_generated || wanted.identity->provenance.has_value());
}

}  // namespace retroinfer::kvstore
