#include "client/inspect/segment_report.h"

#include <chrono>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/command/number_format.h"
#include "common/kv/kv_geometry.h"

namespace retroinfer::client {
namespace {

namespace v1 = kvstore::v1;

constexpr std::chrono::seconds kCallTime(5);

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + kCallTime);
}

// What happens to segments that are evicted or released between two calls.
bool HasLeft(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::NOT_FOUND ||
         status.error_code() == grpc::StatusCode::ABORTED;
}

std::string NameText(const v1::SegmentInfo& info) {
  if (info.name().empty()) return "-";
  return absl::BytesToHexString(info.name().substr(0, 6));
}

std::string Thousands(uint64_t value) { return WithThousands(static_cast<int64_t>(value)); }

}  // namespace

grpc::Status ReadSegments(v1::KvStoreService::StubInterface& stub,
                          std::vector<SegmentLine>* lines) {
  v1::ListSegmentsRequest request;
  do {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::ListSegmentsResponse listed;
    grpc::Status status = stub.ListSegments(&context, request, &listed);
    if (!status.ok()) return status;
    for (v1::SegmentInfo& info : *listed.mutable_segments()) {
      SegmentLine line;
      line.info = std::move(info);
      if (line.info.num_clusters() > 0) {
        v1::FindClustersRequest find;
        find.set_extent_id(line.info.extent().extent_id());
        grpc::ClientContext of_segment;
        SetDeadline(&of_segment);
        status = stub.FindClusters(&of_segment, find, &line.clusters);
        if (HasLeft(status)) continue;
        if (!status.ok()) return status;
      }
      lines->push_back(std::move(line));
    }
    request.set_after_extent_id(listed.next_after_extent_id());
  } while (request.after_extent_id() != 0);
  return grpc::Status::OK;
}

double PageFill(const SegmentLine& line) {
  const v1::FindClustersResponse& clusters = line.clusters;
  const uint64_t places = clusters.num_pages() * clusters.tokens_per_page();
  if (places == 0 || clusters.num_clusters() == 0) return 0;
  // A head has a cluster for each 16 tokens of the segment, empty ones included.
  return static_cast<double>(clusters.num_clusters() * kTokensPerCluster) /
         static_cast<double>(places);
}

void PrintSegments(const std::vector<SegmentLine>& lines, std::FILE* out) {
  std::fprintf(out, "  %-12s  %8s  %10s  %8s  %5s  %10s  %10s  %9s  %7s  %5s\n", "NAME", "EXTENT",
               "TOKEN", "TOKENS", "USERS", "PAGES", "CLUSTERS", "EMPTY", "LARGEST", "FULL");
  for (const SegmentLine& line : lines) {
    const bool has_clusters = line.clusters.num_clusters() > 0;
    const auto of_clusters = [&](uint64_t value) {
      return has_clusters ? Thousands(value) : std::string("-");
    };
    std::fprintf(out, "  %-12s  %8s  %10s  %8s  %5s  %10s  %10s  %9s  %7s  %5s\n",
                 NameText(line.info).c_str(), absl::StrCat(line.info.extent().extent_id()).c_str(),
                 line.info.committed() ? Thousands(line.info.token_begin()).c_str() : "reserved",
                 Thousands(line.info.token_count()).c_str(),
                 absl::StrCat(line.info.references()).c_str(),
                 Thousands(line.info.extent().num_pages()).c_str(),
                 of_clusters(line.clusters.num_clusters()).c_str(),
                 of_clusters(line.clusters.num_empty()).c_str(),
                 of_clusters(line.clusters.max_tokens()).c_str(),
                 has_clusters ? absl::StrFormat("%.0f%%", 100 * PageFill(line)).c_str() : "-");
  }
}

nlohmann::json SegmentsJson(const std::vector<SegmentLine>& lines) {
  nlohmann::json json = nlohmann::json::array();
  for (const SegmentLine& line : lines) {
    nlohmann::json segment = {{"extent_id", line.info.extent().extent_id()},
                              {"name", absl::BytesToHexString(line.info.name())},
                              {"committed", line.info.committed()},
                              {"token_begin", line.info.token_begin()},
                              {"tokens", line.info.token_count()},
                              {"references", line.info.references()},
                              {"pages", line.info.extent().num_pages()}};
    if (line.clusters.num_clusters() > 0) {
      segment["clusters"] = line.clusters.num_clusters();
      segment["empty_clusters"] = line.clusters.num_empty();
      segment["largest_cluster_tokens"] = line.clusters.max_tokens();
      segment["cluster_pages"] = line.clusters.num_pages();
      segment["page_fill_ratio"] = PageFill(line);
    }
    json.push_back(std::move(segment));
  }
  return json;
}

}  // namespace retroinfer::client
