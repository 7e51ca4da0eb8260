// The segments in a store's arena, and how their clusters lie in pages.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "retroinfer/kvstore/v1/kv_store.grpc.pb.h"

namespace retroinfer::client {

// One extent of the arena.
struct SegmentLine {
  kvstore::v1::SegmentInfo info;
  kvstore::v1::FindClustersResponse clusters;  // num_clusters is 0 for what has none
};

// Asks the store for all extents and, of each segment, for its clusters. Segments that leave the
// arena meanwhile are left out. Returns the first error that is not that.
//
// Cost: a call for each segment.
grpc::Status ReadSegments(kvstore::v1::KvStoreService::StubInterface& stub,
                          std::vector<SegmentLine>* lines);

// Share of the places for tokens in the clusters' pages that hold a token; 0 without pages.
double PageFill(const SegmentLine& line);

void PrintSegments(const std::vector<SegmentLine>& lines, std::FILE* out);
nlohmann::json SegmentsJson(const std::vector<SegmentLine>& lines);

}  // namespace retroinfer::client
