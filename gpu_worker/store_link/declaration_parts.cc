#include "gpu_worker/store_link/declaration_parts.h"

#include <string>

namespace retroinfer {
namespace {

namespace v1 = kvstore::v1;

void ToProto(const LedgerExtent& entry, v1::DeclaredExtent* proto) {
  proto->mutable_extent()->set_extent_id(entry.extent.id);
  proto->mutable_extent()->set_first_page(entry.extent.first_page);
  proto->mutable_extent()->set_num_pages(entry.extent.num_pages);
  proto->mutable_extent()->set_part_bytes(entry.extent.part_bytes);
  proto->set_reserved_tokens(entry.extent.num_tokens);
  if (entry.token_begin.has_value()) proto->set_token_begin(*entry.token_begin);
}

size_t AddSegment(const LedgerExtent& entry, bool is_referenced, v1::DeclareSegmentsRequest* part) {
  v1::DeclaredSegment* segment = part->add_named_segments();
  ToProto(entry, segment->mutable_extent());
  ToProto(*entry.identity, segment->mutable_identity());
  segment->set_is_referenced(is_referenced);
  return segment->ByteSizeLong();
}

}  // namespace

void ToProto(const SegmentIdentity& identity, v1::SegmentIdentity* proto) {
  proto->set_name(std::string(identity.name.view()));
  proto->set_parent(std::string(identity.parent.view()));
  proto->set_salt_hash(std::string(identity.salt_hash.view()));
  proto->mutable_token_ids()->Add(identity.token_ids.begin(), identity.token_ids.end());
  ProvenanceToProto(identity, proto);
}

void ProvenanceToProto(const SegmentIdentity& identity, v1::SegmentIdentity* proto) {
  if (!identity.provenance.has_value()) return;
  proto->set_made_by(std::string(identity.provenance->made_by.view()));
  proto->set_sources(std::string(identity.provenance->sources.view()));
  proto->set_text(std::string(identity.provenance->text.view()));
}

DeclarationParts::DeclarationParts(const ExtentLedger& ledger, size_t part_bytes)
    : part_bytes_(part_bytes),
      referenced_(ledger.ReferencedSegments()),
      retained_(ledger.RetainedSegments()),
      next_sequence_(ledger.sequences().begin()),
      num_sequences_(ledger.sequences().size()) {}

bool DeclarationParts::Next(v1::DeclareSegmentsRequest* part) {
  if (was_last_) return false;
  part->Clear();
  size_t bytes = 0;
  while (num_done_ < num_elements() && bytes < part_bytes_) bytes += AddOne(part);
  was_last_ = num_done_ == num_elements();
  part->set_part(next_part_++);
  part->set_is_last(was_last_);
  return true;
}

size_t DeclarationParts::AddOne(v1::DeclareSegmentsRequest* part) {
  const size_t index = num_done_++;
  if (index < referenced_.size()) return AddSegment(*referenced_[index], true, part);
  if (index >= referenced_.size() + num_sequences_) {
    return AddSegment(*retained_[index - referenced_.size() - num_sequences_], false, part);
  }
  const auto& [sequence_id, entries] = *next_sequence_++;
  v1::DeclaredSequence* sequence = part->add_sequences();
  sequence->set_sequence_id(sequence_id);
  uint32_t num_cached = 0;
  for (const LedgerExtent& entry : entries) {
    ToProto(entry, sequence->add_extents());
    num_cached += entry.extent.cached ? 1 : 0;
  }
  sequence->set_num_cached(num_cached);
  return sequence->ByteSizeLong();
}

}  // namespace retroinfer
