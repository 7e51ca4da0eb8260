// Segments and blocks in an arena of plain memory, saved and looked for, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/status/error_reason.h"
#include "tests/kv_store_service/prompt_text.h"
#include "tests/kv_store_service/segment_writer.h"
#include "tests/kv_store_service/segments_in_memory.h"

namespace retroinfer::kvstore {

// A request for `chain`, whose first segment begins at `offset` behind the sink.
inline ReserveRequest ChainRequest(uint64_t sequence_id, const std::vector<SegmentIdentity>& chain,
                                   size_t offset = 0) {
  ReserveRequest request{.sequence_id = sequence_id};
  request.token_begin = kSinkTokens + offset;
  for (const SegmentIdentity& identity : chain) {
    request.segments.push_back({static_cast<uint32_t>(identity.token_ids.size()), identity});
  }
  return request;
}

// A request for rows, under the settings "wave".
inline ReserveRequest RowsRequest(uint64_t sequence_id, RowsWanted rows) {
  ReserveRequest request{.sequence_id = sequence_id};
  request.made_by = MadeBy("wave");
  request.rows = std::move(rows);
  return request;
}

class RowsInMemoryTest : public testing::Test {
 protected:
  explicit RowsInMemoryTest(uint32_t arena_pages = 6000)
      : bytes_(arena_pages * kPageBytes), store_(bytes_, kTinyGeometry) {
    store_.SetFingerprint(common::FingerprintHash("model"));
  }

  Reservation Reserve(const ReserveRequest& request) {
    auto reservation = store_.Reserve(request);
    EXPECT_TRUE(reservation.ok()) << reservation.status();
    return reservation.ok() ? *reservation : Reservation{};
  }
  std::string ReasonOf(const ReserveRequest& request, bool compute_anyway = false) {
    return common::ReasonOf(store_.Reserve(request, compute_anyway).status()).reason;
  }
  // Writes and commits those of a chain that are not cached.
  absl::Status Commit(const ReserveRequest& request, const Reservation& reservation) {
    std::vector<SegmentToCommit> segments;
    uint64_t token_begin = request.token_begin;
    for (size_t i = 0; i < reservation.extents.size(); ++i) {
      const ExtentRecord& extent = reservation.extents[i];
      if (i >= reservation.num_cached) {
        WriteImage(std::span(bytes_).subspan(size_t{extent.pages.first} * kPageBytes,
                                             size_t{extent.pages.count} * kPageBytes),
                   kTinyGeometry, token_begin, extent.reserved_tokens);
        segments.push_back(
            {extent.id, token_begin, extent.reserved_tokens, request.segments[i].identity});
      }
      token_begin += extent.reserved_tokens;
    }
    if (segments.empty()) return absl::OkStatus();
    return store_.Commit(request.sequence_id, segments).status();
  }
  // Saves a chain as a sequence of its own does. Returns how much of it was there.
  size_t Save(const std::vector<SegmentIdentity>& chain, size_t offset = 0) {
    const ReserveRequest request = ChainRequest(1000, chain, offset);
    const Reservation reservation = Reserve(request);
    const absl::Status status = Commit(request, reservation);
    EXPECT_TRUE(status.ok()) << status;
    store_.Release(1000);
    return reservation.num_cached;
  }
  // Tokens of each piece that holds rows; negative of generated ones. Releases them.
  std::vector<int> Rows(const ReserveRequest& request) {
    std::vector<int> pieces;
    const Reservation reservation = Reserve(request);
    EXPECT_EQ(reservation.num_cached, reservation.extents.size());
    for (const ExtentRecord& extent : reservation.extents) {
      const int tokens = static_cast<int>(extent.reserved_tokens);
      pieces.push_back(extent.key->identity.provenance.has_value() ? -tokens : tokens);
    }
    store_.Release(request.sequence_id);
    return pieces;
  }

  std::vector<std::byte> bytes_;
  SegmentsInMemory store_;
};

}  // namespace retroinfer::kvstore
