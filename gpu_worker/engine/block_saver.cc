#include "gpu_worker/engine/block_saver.h"

#include <algorithm>
#include <utility>

#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "spdlog/spdlog.h"

namespace retroinfer {

BlockSaver::BlockSaver(Parts parts) : parts_(std::move(parts)) {}

void BlockSaver::Save(const SequenceKv& sequence, uint64_t save_id, std::vector<NamedBlock> blocks,
                      SegmentStore::ReserveCallback answer) {
  RI_CHECK(!blocks.empty());
  SaveUnderWay& save = saves_.emplace_back();
  save.sequence_id = sequence.sequence_id;
  save.save_id = save_id;
  ReserveRequest request{.sequence_id = save_id};
  request.token_begin = static_cast<uint64_t>(blocks.front().token_begin);
  request.waits = false;
  for (const NamedBlock& block : blocks) {
    request.segments.push_back(
        {.num_tokens = static_cast<uint32_t>(block.identity.token_ids.size()),
         .identity = block.identity});
  }
  save.blocks = std::move(blocks);
  parts_.store->Reserve(std::move(request), std::move(answer));
}

bool BlockSaver::TakeAnswer(uint64_t save_id, const absl::StatusOr<std::vector<Extent>>& extents) {
  const auto save = std::find_if(saves_.begin(), saves_.end(),
                                 [save_id](const auto& one) { return one.save_id == save_id; });
  if (save == saves_.end()) return false;
  absl::Status status = extents.status();
  if (status.ok()) status = CopyOut(*save, *extents);
  if (status.ok()) return true;
  if (extents.ok()) {
    spdlog::error("blocks of sequence {} are not saved: {}", save->sequence_id, status.ToString());
  }
  End(save, 0);
  return true;
}

absl::Status BlockSaver::CopyOut(SaveUnderWay& save, std::span<const Extent> extents) {
  if (extents.size() != save.blocks.size()) {
    return absl::InternalError("the store answered with another number of extents than blocks");
  }
  StepCommand::Save copies{.id = save.sequence_id, .save_id = save.save_id, .blocks = {}};
  for (size_t i = 0; i < extents.size(); ++i) {
    if (extents[i].cached) continue;
    const NamedBlock& block = save.blocks[i];
    copies.blocks.push_back({.token_begin = block.token_begin,
                             .num_tokens = static_cast<uint32_t>(block.identity.token_ids.size()),
                             .extent = extents[i]});
    save.segments.push_back({.extent_id = extents[i].id,
                             .token_begin = static_cast<uint64_t>(block.token_begin),
                             .identity = block.identity});
  }
  RETURN_IF_ERROR(parts_.copy(std::move(copies)));
  save.is_begun = true;
  return absl::OkStatus();
}

size_t BlockSaver::Tend() {
  size_t ended = 0;
  for (auto save = saves_.begin(); save != saves_.end();) {
    const auto next = std::next(save);
    if (save->is_begun) {
      const absl::StatusOr<bool> copied = parts_.is_copied(save->save_id);
      if (!copied.ok()) {
        spdlog::error("copies of blocks of sequence {}: {}", save->sequence_id,
                      copied.status().ToString());
        parts_.end_copy(save->save_id);
        End(save, 0);
        ++ended;
      } else if (*copied) {
        const size_t num_saved = save->segments.size();
        parts_.end_copy(save->save_id);
        if (num_saved > 0) parts_.store->Commit(save->save_id, std::move(save->segments));
        End(save, num_saved);
        ++ended;
      }
    }
    save = next;
  }
  return ended;
}

void BlockSaver::End(std::list<SaveUnderWay>::iterator save, size_t num_saved) {
  counters_.saved_blocks += num_saved;
  if (num_saved == 0 && !save->is_begun) counters_.unsaved_blocks += save->blocks.size();
  parts_.store->Release(save->save_id);
  saves_.erase(save);
}

bool BlockSaver::IsSaving(uint64_t sequence_id) const {
  return std::any_of(saves_.begin(), saves_.end(), [sequence_id](const SaveUnderWay& save) {
    return save.sequence_id == sequence_id;
  });
}

}  // namespace retroinfer
