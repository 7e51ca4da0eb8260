// A worker as the fuzzer of a store's calls has it: it knows what a call needs, such as the token,
// the number of the call or names that are right, and puts it where a message says nothing of its
// own. So an empty message is a right call, and each field that an input sets is what it tries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/hash/segment_name.h"
#include "common/kv/segment_layout.h"
#include "common/shm/sealed_memory.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/store/kv_store.h"
#include "retroinfer/kvstore/v1/contexts.pb.h"
#include "retroinfer/kvstore/v1/kv_store.pb.h"
#include "tests/kv_store_service/segment_writer.h"

namespace retroinfer::fuzz {

namespace v1 = retroinfer::kvstore::v1;

inline constexpr KvGeometry kFuzzGeometry{1, 1, 64, kBf16Kv};
inline constexpr char kFuzzModel[] = "model";

class StoreCaller {
 public:
  void Complete(v1::AttachWorkerRequest* request) const {
    if (!request->has_geometry()) {
      v1::KvGeometry& geometry = *request->mutable_geometry();
      geometry.set_num_layers(kFuzzGeometry.num_layers);
      geometry.set_num_kv_heads(kFuzzGeometry.num_kv_heads);
      geometry.set_head_dim(kFuzzGeometry.head_dim);
      geometry.set_kv_format(static_cast<uint32_t>(kFuzzGeometry.format.id));
    }
    if (request->model_fingerprint().empty()) request->set_model_fingerprint(kFuzzModel);
    if (request->log_capacity() == 0) request->set_log_capacity(64);
    if (request->request_capacity() == 0) request->set_request_capacity(64);
  }
  void Complete(v1::ReserveExtentsRequest* request) {
    CompleteCall(request);
    if (request->segment_tokens_size() == 0) request->add_segment_tokens(1);
    for (uint32_t& tokens : *request->mutable_segment_tokens()) {
      if (tokens <= 8) tokens *= 1024;
    }
    common::SegmentName parent = SinkName();
    for (int i = 0; i < request->identities_size() && i < request->segment_tokens_size(); ++i) {
      parent = Complete(request->mutable_identities(i), request->segment_tokens(i), parent);
    }
  }
  // All that the sequence has reserved, of an empty request. Writes the images of what is
  // committed.
  void Complete(v1::CommitSegmentsRequest* request) {
    CompleteCall(request);
    const std::vector<Reserved>& known = reserved_[request->sequence_id()];
    if (request->segments_size() == 0) {
      for (size_t i = 0; i < known.size(); ++i) request->add_segments();
    }
    for (int i = 0; i < request->segments_size() && i < static_cast<int>(known.size()); ++i) {
      Complete(request->mutable_segments(i), known[static_cast<size_t>(i)]);
    }
  }
  void Complete(v1::ReleaseSequenceRequest* request) {
    CompleteCall(request);
    reserved_.erase(request->sequence_id());
  }
  void Complete(v1::DetachWorkerRequest* request) const { CompleteToken(request); }
  // All that is known, in one part, of an empty request.
  void Complete(v1::DeclareSegmentsRequest* request) {
    CompleteToken(request);
    if (request->part() == 0) request->set_part(next_part_);
    if (request->sequences_size() > 0 || request->named_segments_size() > 0) return;
    request->set_is_last(true);
    for (const auto& [sequence, all] : reserved_) {
      v1::DeclaredSequence& declared = *request->add_sequences();
      declared.set_sequence_id(sequence);
      for (const Reserved& one : all) {
        v1::DeclaredExtent& extent = *declared.add_extents();
        *extent.mutable_extent() = one.extent;
        extent.set_reserved_tokens(one.num_tokens);
        if (one.committed) extent.set_token_begin(one.token_begin);
      }
    }
  }
  template <typename OfTenant>
  void CompleteTenant(OfTenant* request) const {
    if (request->salt_hash().empty()) request->set_salt_hash(std::string(Tenant().view()));
  }
  template <typename OfOne>
  void CompleteName(OfOne* request) const {
    CompleteTenant(request);
    if (request->name().empty()) request->set_name("book");
  }
  void Complete(v1::SaveContextRequest* request) const {
    CompleteName(request);
    if (request->root().empty()) request->set_root(std::string(Root().view()));
    if (request->num_tokens() == 0) request->set_num_tokens(kSinkTokens + 1024 + 70);
    if (request->sink_token_ids().empty()) {
      for (size_t i = 0; i < kSinkTokens; ++i) request->add_sink_token_ids(1);
    }
    if (request->segments_size() > 0) return;
    v1::SegmentIdentity first;
    Complete(&first, 1024, SinkName());
    request->add_segments(first.name());
  }
  void Complete(v1::ImportContextRequest* request) const {
    CompleteTenant(request);
    if (request->root().empty()) request->set_root(std::string(Root().view()));
    if (request->data().empty()) {
      request->set_data(file_);
    } else if (const auto at = static_cast<uint8_t>(request->data()[0]); at < 200) {
      std::string damaged = file_.substr(0, file_.size() - (at == 199 ? 1 : 0));
      for (size_t i = 0; i < request->data().size() && at + i < damaged.size(); ++i) {
        damaged[at + i] = request->data()[i];
      }
      request->set_data(std::move(damaged));
    }
  }

  void Attached(const std::string& token) {
    token_ = token;
    call_number_ = 0;
    next_part_ = 0;
  }
  void TakeMemory(kvstore::MemoryDescriptors pair, uint64_t bytes_max) {
    reserved_.clear();
    auto arena = common::SealedMemory::Adopt(common::UniqueFd(::dup(pair.arena.get())), bytes_max);
    if (arena.ok()) arena_ = *std::move(arena);
    memory_ = std::move(pair);
  }
  void Declared() { ++next_part_; }
  void Granted(const v1::ReserveExtentsRequest& request,
               const v1::ReserveExtentsResponse& response) {
    if (request.cached_only() || response.extents_size() == 0) return;
    std::vector<Reserved>& known = reserved_[request.sequence_id()];
    known.clear();
    uint64_t token_begin = kSinkTokens;
    for (int i = 0; i < response.extents_size(); ++i) {
      const uint32_t tokens = request.segment_tokens(i);
      known.push_back({response.extents(i), token_begin, tokens, response.extents(i).cached(), {}});
      if (i < request.identities_size()) known.back().identity = request.identities(i);
      token_begin += tokens;
    }
  }
  void Committed(const v1::CommitSegmentsRequest& request,
                 const v1::CommitSegmentsResponse& response) {
    for (Reserved& one : reserved_[request.sequence_id()]) {
      for (const v1::Extent& extent : response.extents()) {
        if (extent.extent_id() != one.extent.extent_id()) continue;
        one.extent = extent;
        one.committed = true;
      }
    }
  }
  void Exported(std::string file) { file_ = std::move(file); }

  const std::string& token() const { return token_; }
  const kvstore::MemoryDescriptors& memory() const { return memory_; }

 private:
  struct Reserved {
    v1::Extent extent;
    uint64_t token_begin = 0;
    uint32_t num_tokens = 0;
    bool committed = false;
    std::optional<v1::SegmentIdentity> identity;
  };

  static common::Hash256 Tenant() { return common::SaltHash(""); }
  static common::SegmentName Root() {
    return common::RootName(kFuzzModel, Tenant(), kSegmentVersion);
  }
  static common::SegmentName SinkName() {
    return common::NameSegment(Root(), std::vector<int32_t>(kSinkTokens, 1));
  }
  template <typename Request>
  void CompleteToken(Request* request) const {
    if (request->attach_token().empty()) request->set_attach_token(token_);
  }
  template <typename Request>
  void CompleteCall(Request* request) {
    CompleteToken(request);
    if (request->call_number() == 0) request->set_call_number(++call_number_);
  }
  // One token stands for as many as the segment has. Returns the right name.
  common::SegmentName Complete(v1::SegmentIdentity* identity, uint32_t num_tokens,
                               const common::SegmentName& parent) const {
    std::vector<int32_t> tokens(identity->token_ids().begin(), identity->token_ids().end());
    if (tokens.size() <= 1 && num_tokens <= 8192) {
      const int32_t text = tokens.empty() ? 0 : tokens[0];
      tokens.clear();
      for (uint32_t i = 0; i < num_tokens; ++i) {
        tokens.push_back(static_cast<int32_t>((static_cast<uint32_t>(text) + i) % 300));
      }
      identity->mutable_token_ids()->Assign(tokens.begin(), tokens.end());
    }
    const common::SegmentName name = common::NameSegment(parent, tokens);
    if (identity->name().empty()) identity->set_name(std::string(name.view()));
    if (identity->parent().empty()) identity->set_parent(std::string(parent.view()));
    if (identity->salt_hash().empty()) identity->set_salt_hash(std::string(Tenant().view()));
    return name;
  }
  void Complete(v1::Segment* segment, const Reserved& known) {
    if (segment->extent_id() == 0) segment->set_extent_id(known.extent.extent_id());
    if (segment->token_begin() == 0) segment->set_token_begin(known.token_begin);
    if (segment->token_count() == 0) segment->set_token_count(known.num_tokens);
    if (!segment->has_identity() && known.identity.has_value()) {
      *segment->mutable_identity() = *known.identity;
    }
    const uint64_t begin = uint64_t{known.extent.first_page()} * kPageBytes;
    const uint64_t size = uint64_t{known.extent.num_pages()} * kPageBytes;
    if (known.committed || !arena_.valid() || begin + size > arena_.bytes().size() ||
        known.extent.num_pages() < SegmentLayout(kFuzzGeometry, known.num_tokens).max_pages) {
      return;  // the store gave an extent for another geometry
    }
    kvstore::WriteSegment(arena_.bytes().subspan(begin, size), kFuzzGeometry, known.token_begin,
                          known.num_tokens);
  }

  std::string token_;
  uint64_t call_number_ = 0;
  uint64_t next_part_ = 0;
  kvstore::MemoryDescriptors memory_;
  common::SealedMemory arena_;
  std::map<uint64_t, std::vector<Reserved>> reserved_;
  std::string file_;
};

}  // namespace retroinfer::fuzz
