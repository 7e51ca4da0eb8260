#include "gpu_worker/engine/segment_claim.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/kv/extent_check.h"

namespace retroinfer {
namespace {

common::SegmentName NameOf(const SequenceKv& sequence, const CachedRun& run) {
  if (run.extent.generated.has_value()) return *run.extent.generated;
  const int64_t end = run.token_end() - kSinkTokens;
  const common::SegmentName& text =
      sequence.prefix.texts[static_cast<size_t>(end / kDenseBlockTokens)];
  if (end % kDenseBlockTokens == 0) return text;
  // Of a block that is not full, which begins there.
  return common::NameSegment(
      text, sequence.prompt.subspan(static_cast<size_t>(run.token_begin), run.num_tokens()));
}

// The end of the tokens that may be read. The last token of a prompt is computed, unless its result
// is not asked for and no segment is built of what is read.
int64_t MostRead(const SequenceKv& sequence) {
  const bool may_be_all =
      sequence.given_tokens > 0 && sequence.num_cached_segments == sequence.prefix.names.size();
  return std::ssize(sequence.prompt) - (may_be_all ? 0 : 1);
}

}  // namespace

std::string HowPrefilled(const AttentionSettings& settings, const BlockChoice& sparse) {
  if (settings.prefill != PrefillKind::kSparse) return "";
  // The number stands for the rule by which blocks are chosen: another rule, another number.
  return absl::StrCat("sparse prefill 1: ", std::bit_cast<uint32_t>(sparse.threshold), " from ",
                      sparse.dense_before);
}

common::Hash256 MadeBy(const AttentionSettings& settings, const WaveIndexSettings& index) {
  common::Sha256 hash("retroinfer attention settings");
  const auto add = [&hash](double value) { hash.AddU64(std::bit_cast<uint64_t>(value)); };
  hash.Add(PolicyName(settings.policy));
  // Settings of other policies than the request's change nothing.
  if (settings.policy == PolicyKind::kWave) {
    add(settings.retrieval_ratio);
    add(settings.estimation_ratio);
    add(settings.max_unseen_mass);
    hash.AddU64(static_cast<uint64_t>(settings.ranking));
    hash.AddU64(static_cast<uint64_t>(index.min_retrieved));
    // Where tokens have no codes, nothing is added: names that exist stay.
    if (index.candidate_ratio != 0) {
      add(index.candidate_ratio);
      hash.AddU64(static_cast<uint64_t>(index.min_candidates));
    }
  }
  return hash.Finish();
}

std::optional<ReserveRequest> ClaimSegments(const SequenceKv& sequence, const KvNeed& need) {
  if (need.segment_tokens.empty()) return std::nullopt;
  const size_t num_names = sequence.prefix.names.size();
  ReserveRequest request{.sequence_id = sequence.sequence_id};
  request.made_by = sequence.lineage.made_by();
  int64_t end = kSinkTokens;
  for (size_t i = 0; i < need.segment_tokens.size(); ++i) {
    SegmentWanted& wanted = request.segments.emplace_back();
    wanted.num_tokens = need.segment_tokens[i];
    end += wanted.num_tokens;
    // A prompt whose rows are all wanted finds no segment by its name, and names those that it
    // commits (CommitOf).
    if (i >= num_names || sequence.reads_whole) continue;
    wanted.identity = IdentityOf(sequence.prefix, sequence.prompt, i);
    wanted.text = sequence.prefix.texts[static_cast<size_t>(end - kSinkTokens) / kDenseBlockTokens];
  }
  return request;
}

absl::Status TakeExtents(std::vector<Extent> extents, uint32_t arena_pages, SequenceKv& sequence) {
  for (const Extent& extent : extents) RETURN_IF_ERROR(CheckInside(extent, arena_pages));
  sequence.extents = std::move(extents);
  sequence.num_cached_segments = 0;
  sequence.cached.clear();
  const size_t most = std::min(sequence.extents.size(), sequence.prefix.names.size());
  for (size_t i = 0; i < most && sequence.extents[i].cached; ++i) {
    CachedRun run{.extent = sequence.extents[i], .name = {}, .token_begin = sequence.read_end()};
    run.name = NameOf(sequence, run);
    sequence.cached.push_back(std::move(run));
    ++sequence.num_cached_segments;
  }
  sequence.shared_end = sequence.cached_end = sequence.read_end();
  sequence.lineage.SetCached(sequence.cached, sequence.num_cached_segments);
  return absl::OkStatus();
}

absl::Status TakeGrowth(const std::vector<Extent>& extents, size_t num_wanted, uint64_t holder,
                        uint32_t arena_pages, SequenceKv& sequence) {
  if (extents.size() != num_wanted) {
    return absl::InternalError(absl::StrCat("the store answered with ", extents.size(),
                                            " extents, ", num_wanted, " were asked for"));
  }
  for (const Extent& extent : extents) RETURN_IF_ERROR(CheckInside(extent, arena_pages));
  sequence.growths.push_back({.first = sequence.extents.size(), .holder = holder});
  sequence.extents.insert(sequence.extents.end(), extents.begin(), extents.end());
  return absl::OkStatus();
}

std::optional<ReserveRequest> ClaimRows(const SequenceKv& sequence, uint64_t rows_id) {
  const NamedPrefix& prefix = sequence.prefix;
  const int64_t begin = sequence.shared_end;
  const int64_t end = MostRead(sequence);
  if (!sequence.lineage.names_any() || end - begin < int64_t{kDenseBlockTokens}) {
    return std::nullopt;
  }
  ReserveRequest request{.sequence_id = rows_id};
  request.made_by = sequence.lineage.made_by();
  RowsWanted& rows = request.rows.emplace();
  rows.token_begin = static_cast<uint64_t>(begin);
  rows.sequence_id = sequence.sequence_id;
  rows.generated = sequence.lineage.GeneratedOfCached();
  rows.texts.assign(prefix.texts.begin() + (begin - kSinkTokens) / kDenseBlockTokens,
                    prefix.texts.end());
  for (const RowsWanted::Segment& piece : prefix.pieces) {
    const auto first = static_cast<int64_t>(piece.token_begin);
    if (first >= begin && first + piece.num_tokens <= end) rows.segments.push_back(piece);
  }
  rows.token_ids.assign(sequence.prompt.begin() + begin, sequence.prompt.begin() + end);
  return request;
}

absl::Status TakeRows(const std::vector<Extent>& extents, uint32_t arena_pages,
                      const KvGeometry& geometry, SequenceKv& sequence) {
  const int64_t end = MostRead(sequence);
  std::vector<CachedRun> runs;
  int64_t position = sequence.shared_end;
  for (const Extent& extent : extents) {
    RETURN_IF_ERROR(CheckInside(extent, arena_pages));
    RETURN_IF_ERROR(CheckHolds(extent, geometry));
    CachedRun run{.extent = extent, .name = {}, .token_begin = position};
    position = run.token_end();
    if (position > end) {
      return absl::InternalError(
          absl::StrCat("the store answered with KV up to token ", position, " of ", end));
    }
    run.name = NameOf(sequence, run);
    runs.push_back(std::move(run));
  }
  sequence.cached.insert(sequence.cached.end(), runs.begin(), runs.end());
  sequence.cached_end = sequence.read_end();
  sequence.lineage.SetCached(sequence.cached, sequence.num_cached_segments);
  return absl::OkStatus();
}

CommittedSegment CommitOf(const SequenceKv& sequence, size_t index, int64_t token_begin) {
  CommittedSegment segment{.extent_id = sequence.extents[index].id,
                           .token_begin = static_cast<uint64_t>(token_begin),
                           .identity = std::nullopt};
  // Without its tail no other prompt could go on behind it.
  if (sequence.TailOf(index) == SequenceKv::Tail::kMissing) return segment;
  segment.identity = sequence.lineage.OfSegment(index, sequence.extents);
  return segment;
}

}  // namespace retroinfer
