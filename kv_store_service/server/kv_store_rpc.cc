#include "kv_store_service/server/kv_store_rpc.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock/steady_now.h"
#include "common/rpc/bounded_service.h"
#include "common/rpc/grpc_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

using common::ToGrpcStatus;

constexpr uint32_t kListDefault = 1000;
constexpr uint32_t kListMax = 10000;
constexpr int kRunNumbersMax = 1 << 20;
constexpr int kExtentsOfFetchMax = 65536;
constexpr uint64_t kPartsOfFetchMax = 1 << 26;

absl::StatusOr<KvGeometry> FromProto(const v1::KvGeometry& proto) {
  ASSIGN_OR_RETURN(const KvFormat format, KvFormatOfNumber(proto.kv_format()));
  return KvGeometry{proto.num_layers(),        proto.num_kv_heads(), proto.head_dim(), format,
                    proto.num_window_layers(), proto.window_tokens()};
}

void ToProto(const KvGeometry& geometry, v1::KvGeometry* proto) {
  proto->set_num_layers(geometry.num_layers);
  proto->set_num_kv_heads(geometry.num_kv_heads);
  proto->set_head_dim(geometry.head_dim);
  proto->set_kv_format(static_cast<uint32_t>(geometry.format.id));
  proto->set_num_window_layers(geometry.num_window_layers);
  proto->set_window_tokens(geometry.window_tokens);
}

void ToProto(const DataPlaneStats& stats, v1::DataPlane* proto) {
  proto->set_num_slots(stats.num_slots);
  proto->set_used_slots(stats.used_slots);
  proto->set_evictions_in_flight(stats.in_flight);
  proto->set_log_depth(stats.log_depth);
  proto->set_log_entries_refused(stats.entries_refused + stats.cursors_refused);
  proto->set_evictions_applied(stats.evictions_applied);
}

void ToProto(const ExtentRecord& record, v1::Extent* proto) {
  proto->set_extent_id(record.id);
  proto->set_first_page(record.pages.first);
  proto->set_num_pages(record.pages.count);
  proto->set_part_bytes(record.part_bytes);
}

// An empty hash: not set.
absl::StatusOr<std::optional<common::Hash256>> OptionalHash(const std::string& bytes) {
  if (bytes.empty()) return std::nullopt;
  ASSIGN_OR_RETURN(const common::Hash256 hash, common::Hash256::FromBytes(bytes));
  return hash;
}

// Hashes one behind the other.
absl::StatusOr<std::vector<common::SegmentName>> NamesOf(std::string_view bytes) {
  constexpr size_t kHashBytes = sizeof(common::SegmentName);
  if (bytes.size() % kHashBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("text names in ", bytes.size(), " bytes, needs ", kHashBytes, " for each"));
  }
  std::vector<common::SegmentName> names(bytes.size() / kHashBytes);
  for (size_t i = 0; i < names.size(); ++i) {
    ASSIGN_OR_RETURN(names[i],
                     common::Hash256::FromBytes(bytes.substr(i * kHashBytes, kHashBytes)));
  }
  return names;
}

absl::StatusOr<std::optional<common::Provenance>> ProvenanceOf(const v1::SegmentIdentity& proto) {
  if (proto.made_by().empty() && proto.sources().empty() && proto.text().empty()) {
    return std::nullopt;
  }
  common::Provenance provenance;
  ASSIGN_OR_RETURN(provenance.made_by, common::Hash256::FromBytes(proto.made_by()));
  ASSIGN_OR_RETURN(provenance.sources, common::Hash256::FromBytes(proto.sources()));
  ASSIGN_OR_RETURN(provenance.text, common::Hash256::FromBytes(proto.text()));
  return provenance;
}

// Parent and salt may be left out behind another named segment: they follow from that one.
absl::StatusOr<SegmentIdentity> FromProto(const v1::SegmentIdentity& proto,
                                          const SegmentWanted* before = nullptr) {
  SegmentIdentity identity;
  const bool may_leave_out = before != nullptr && before->identity.has_value();
  if (may_leave_out) {
    identity.parent = before->identity->name;
    identity.salt_hash = before->identity->salt_hash;
  }
  ASSIGN_OR_RETURN(identity.name, common::Hash256::FromBytes(proto.name()));
  if (!may_leave_out || !proto.parent().empty()) {
    ASSIGN_OR_RETURN(identity.parent, common::Hash256::FromBytes(proto.parent()));
  }
  if (!may_leave_out || !proto.salt_hash().empty()) {
    ASSIGN_OR_RETURN(identity.salt_hash, common::Hash256::FromBytes(proto.salt_hash()));
  }
  ASSIGN_OR_RETURN(identity.provenance, ProvenanceOf(proto));
  identity.token_ids.assign(proto.token_ids().begin(), proto.token_ids().end());
  return identity;
}

absl::StatusOr<RowsWanted> FromProto(const v1::WantedRows& proto) {
  RowsWanted rows;
  rows.token_begin = proto.token_begin();
  rows.sequence_id = proto.sequence_id();
  ASSIGN_OR_RETURN(rows.generated, OptionalHash(proto.generated_name()));
  ASSIGN_OR_RETURN(rows.texts, NamesOf(proto.texts()));
  for (const v1::WantedRows::Segment& segment : proto.segments()) {
    RowsWanted::Segment& added = rows.segments.emplace_back();
    added.token_begin = segment.token_begin();
    added.num_tokens = segment.num_tokens();
    ASSIGN_OR_RETURN(added.name, common::Hash256::FromBytes(segment.name()));
  }
  rows.token_ids.assign(proto.token_ids().begin(), proto.token_ids().end());
  return rows;
}

absl::StatusOr<ReserveRequest> FromProto(const v1::ReserveExtentsRequest& proto) {
  if (proto.identities_size() > proto.segment_tokens_size()) {
    return absl::InvalidArgumentError(absl::StrCat(proto.identities_size(), " identities for ",
                                                   proto.segment_tokens_size(), " segments"));
  }
  ReserveRequest request{.sequence_id = proto.sequence_id()};
  request.cached_only = proto.cached_only();
  request.takes_partial = proto.takes_partial();
  if (proto.token_begin() != 0) request.token_begin = proto.token_begin();
  ASSIGN_OR_RETURN(request.made_by, OptionalHash(proto.made_by()));
  if (proto.has_rows()) {
    ASSIGN_OR_RETURN(request.rows, FromProto(proto.rows()));
  }
  ASSIGN_OR_RETURN(const std::vector<common::SegmentName> texts, NamesOf(proto.texts()));
  if (!texts.empty() && texts.size() != static_cast<size_t>(proto.identities_size())) {
    return absl::InvalidArgumentError(
        absl::StrCat(texts.size(), " text names for ", proto.identities_size(), " identities"));
  }
  request.segments.resize(proto.segment_tokens_size());
  for (int i = 0; i < proto.segment_tokens_size(); ++i) {
    SegmentWanted& wanted = request.segments[i];
    wanted.num_tokens = proto.segment_tokens(i);
    if (i >= proto.identities_size()) continue;
    ASSIGN_OR_RETURN(wanted.identity,
                     FromProto(proto.identities(i), i == 0 ? nullptr : &wanted - 1));
    if (!texts.empty()) wanted.text = texts[i];
  }
  return request;
}

ExtentRecord FromProto(const v1::DeclaredExtent& proto, uint64_t sequence_id) {
  ExtentRecord record;
  record.id = proto.extent().extent_id();
  record.pages = {proto.extent().first_page(), proto.extent().num_pages()};
  record.sequence_id = sequence_id;
  record.reserved_tokens = proto.reserved_tokens();
  record.part_bytes = proto.extent().part_bytes();
  if (proto.has_token_begin()) record.token_begin = proto.token_begin();
  return record;
}

}  // namespace

KvStoreRpc::KvStoreRpc(KvStore* store, std::string descriptor_socket_path)
    : store_(store),
      descriptor_socket_path_(std::move(descriptor_socket_path)),
      started_(common::SteadyNow()) {}

std::unique_ptr<grpc::Service> KvStoreRpc::Bounded() {
  auto service = std::make_unique<common::BoundedService<KvStoreRpc>>(
      v1::KvStoreService::service_full_name(), this);
  service->Add("AttachWorker", &KvStoreRpc::AttachWorker);
  service->Add("DetachWorker", &KvStoreRpc::DetachWorker);
  service->Add("ReserveExtents", &KvStoreRpc::ReserveExtents);
  service->Add("FetchParts", &KvStoreRpc::FetchParts);
  service->Add("CommitSegments", &KvStoreRpc::CommitSegments);
  service->Add("ReleaseSequence", &KvStoreRpc::ReleaseSequence);
  service->Add("DeclareSegments", &KvStoreRpc::DeclareSegments);
  service->Add("ListSegments", &KvStoreRpc::ListSegments);
  service->Add("FindClusters", &KvStoreRpc::FindClusters);
  service->Add("ListDurableSegments", &KvStoreRpc::ListDurableSegments);
  service->Add("GetStats", &KvStoreRpc::GetStats);
  return service;
}

grpc::Status KvStoreRpc::AttachWorker(grpc::ServerContext*, const v1::AttachWorkerRequest* request,
                                      v1::AttachWorkerResponse* response) {
  AttachParameters parameters;
  absl::StatusOr<KvGeometry> geometry = FromProto(request->geometry());
  if (!geometry.ok()) return ToGrpcStatus(geometry.status());
  parameters.geometry = *std::move(geometry);
  parameters.model_fingerprint = request->model_fingerprint();
  parameters.num_slots = request->num_slots();
  parameters.log_capacity = request->log_capacity();
  parameters.request_capacity = request->request_capacity();
  parameters.hand_back = request->hand_back();
  if (request->num_planes() != 0) parameters.num_planes = request->num_planes();
  const auto result = store_->leases().Attach(parameters);
  if (!result.ok()) return ToGrpcStatus(result.status());
  response->set_attach_token(result->token);
  response->set_descriptor_socket_path(descriptor_socket_path_);
  response->set_arena_bytes(result->arena_bytes);
  response->set_data_plane_bytes(result->data_plane_bytes);
  response->set_store_writes_arena(result->store_writes_arena);
  return grpc::Status::OK;
}

grpc::Status KvStoreRpc::DetachWorker(grpc::ServerContext*, const v1::DetachWorkerRequest* request,
                                      v1::DetachWorkerResponse*) {
  return ToGrpcStatus(store_->leases().Detach(request->attach_token()));
}

grpc::Status KvStoreRpc::ReserveExtents(grpc::ServerContext*,
                                        const v1::ReserveExtentsRequest* request,
                                        v1::ReserveExtentsResponse* response) {
  const absl::StatusOr<ReserveRequest> wanted = FromProto(*request);
  if (!wanted.ok()) return ToGrpcStatus(wanted.status());
  const auto reservation = store_->reservations().Reserve(
      request->attach_token(), request->call_number(), *wanted, request->compute_anyway());
  if (!reservation.ok()) return ToGrpcStatus(reservation.status());
  response->set_compare_segments(static_cast<uint32_t>(reservation->num_to_compare));
  for (size_t i = 0; i < reservation->extents.size(); ++i) {
    const ExtentRecord& record = reservation->extents[i];
    v1::Extent* extent = response->add_extents();
    ToProto(record, extent);
    extent->set_num_tokens(record.reserved_tokens);
    extent->set_cached(i < reservation->num_cached);
    if (extent->cached() && record.key != nullptr && record.key->identity.provenance.has_value()) {
      extent->set_generated_name(std::string(record.key->identity.name.view()));
    }
  }
  return grpc::Status::OK;
}

grpc::Status KvStoreRpc::FetchParts(grpc::ServerContext*, const v1::FetchPartsRequest* request,
                                    v1::FetchPartsResponse* response) {
  std::vector<PartsOfExtent> wanted;
  int num_runs = 0;
  uint64_t num_parts = 0;
  for (const v1::WantedParts& parts : request->wanted()) {
    num_runs += parts.runs_size();
    if (parts.runs_size() % 2 != 0 || num_runs > kRunNumbersMax ||
        request->wanted_size() > kExtentsOfFetchMax) {
      return ToGrpcStatus(absl::InvalidArgumentError(
          absl::StrCat("a run of parts is two numbers, at most ", kRunNumbersMax, " of ",
                       kExtentsOfFetchMax, " extents")));
    }
    for (int i = 1; i < parts.runs_size(); i += 2) num_parts += parts.runs(i);
    if (num_parts > kPartsOfFetchMax) {
      return ToGrpcStatus(absl::InvalidArgumentError(
          absl::StrCat("more than ", kPartsOfFetchMax, " parts in one call")));
    }
    wanted.push_back({parts.extent_id(), {parts.runs().begin(), parts.runs().end()}});
  }
  const auto there = store_->reservations().FetchParts(request->attach_token(), wanted);
  if (!there.ok()) return ToGrpcStatus(there.status());
  response->mutable_there_until()->Add(there->begin(), there->end());
  return grpc::Status::OK;
}

grpc::Status KvStoreRpc::CommitSegments(grpc::ServerContext*,
                                        const v1::CommitSegmentsRequest* request,
                                        v1::CommitSegmentsResponse* response) {
  std::vector<SegmentToCommit> segments;
  for (const v1::Segment& segment : request->segments()) {
    segments.push_back({segment.extent_id(), segment.token_begin(), segment.token_count()});
    if (!segment.has_identity()) continue;
    auto identity = FromProto(segment.identity());
    if (!identity.ok()) return ToGrpcStatus(identity.status());
    segments.back().identity = *std::move(identity);
  }
  const auto extents = store_->reservations().Commit(
      request->attach_token(), request->call_number(), request->sequence_id(), segments);
  if (!extents.ok()) return ToGrpcStatus(extents.status());
  for (const ExtentRecord& extent : *extents) {
    v1::Extent* added = response->add_extents();
    ToProto(extent, added);
    added->set_cached(extent.key != nullptr);
  }
  return grpc::Status::OK;
}

grpc::Status KvStoreRpc::ReleaseSequence(grpc::ServerContext*,
                                         const v1::ReleaseSequenceRequest* request,
                                         v1::ReleaseSequenceResponse* response) {
  const auto freed = store_->reservations().Release(request->attach_token(), request->call_number(),
                                                    request->sequence_id());
  if (!freed.ok()) return ToGrpcStatus(freed.status());
  response->set_freed_pages(static_cast<uint32_t>(*freed));
  return grpc::Status::OK;
}

grpc::Status KvStoreRpc::DeclareSegments(grpc::ServerContext*,
                                         const v1::DeclareSegmentsRequest* request,
                                         v1::DeclareSegmentsResponse*) {
  Declaration part;
  for (const v1::DeclaredSequence& sequence : request->sequences()) {
    DeclaredSequence& declared = part.sequences.emplace_back();
    declared.sequence_id = sequence.sequence_id();
    declared.num_cached = sequence.num_cached();
    for (const v1::DeclaredExtent& extent : sequence.extents()) {
      declared.extents.push_back(FromProto(extent, sequence.sequence_id()));
    }
  }
  for (const v1::DeclaredSegment& segment : request->named_segments()) {
    auto identity = FromProto(segment.identity());
    if (!identity.ok()) return ToGrpcStatus(identity.status());
    part.segments.push_back(
        {FromProto(segment.extent(), 0), *std::move(identity), segment.is_referenced()});
  }
  return ToGrpcStatus(store_->reservations().Declare(request->attach_token(), request->part(), part,
                                                     request->is_last()));
}

grpc::Status KvStoreRpc::ListSegments(grpc::ServerContext*, const v1::ListSegmentsRequest* request,
                                      v1::ListSegmentsResponse* response) {
  const uint32_t limit =
      request->max_results() == 0 ? kListDefault : std::min(request->max_results(), kListMax);
  for (const ExtentListing& listing : store_->listing().List(request->after_extent_id(), limit)) {
    v1::SegmentInfo* info = response->add_segments();
    ToProto(listing.record, info->mutable_extent());
    info->set_sequence_id(listing.record.sequence_id);
    info->set_committed(listing.record.committed());
    info->set_token_begin(listing.record.token_begin.value_or(0));
    info->set_token_count(listing.record.reserved_tokens);
    info->set_num_clusters(static_cast<uint32_t>(listing.num_clusters));
    info->set_references(listing.record.references);
    if (listing.record.key != nullptr) {
      info->set_name(std::string(listing.record.key->identity.name.view()));
    }
  }
  if (response->segments_size() == static_cast<int>(limit)) {
    response->set_next_after_extent_id(
        response->segments(response->segments_size() - 1).extent().extent_id());
  }
  return grpc::Status::OK;
}

grpc::Status KvStoreRpc::FindClusters(grpc::ServerContext*, const v1::FindClustersRequest* request,
                                      v1::FindClustersResponse* response) {
  std::optional<SegmentListing::Head> head;
  if (request->has_head()) {
    head = SegmentListing::Head{request->head().layer(), request->head().kv_head()};
  }
  const auto found = store_->listing().FindClusters(request->extent_id(), head);
  if (!found.ok()) return ToGrpcStatus(found.status());
  response->set_num_clusters(found->num_clusters);
  response->set_num_empty(found->num_empty);
  response->set_num_pages(found->num_pages);
  response->set_max_tokens(found->max_tokens);
  response->set_tokens_per_page(found->tokens_per_page);
  for (const ClusterPages& cluster : found->of_head) {
    v1::ClusterPages* proto = response->add_clusters();
    proto->set_first_page(cluster.pages.first);
    proto->set_num_pages(cluster.pages.count);
    proto->set_num_tokens(cluster.num_tokens);
  }
  return grpc::Status::OK;
}

grpc::Status KvStoreRpc::ListDurableSegments(grpc::ServerContext*,
                                             const v1::ListDurableSegmentsRequest* request,
                                             v1::ListDurableSegmentsResponse* response) {
  const size_t limit =
      request->max_results() == 0 ? kListDefault : std::min(request->max_results(), kListMax);
  const auto records = store_->ListDurable();
  if (!records.has_value()) {
    return ToGrpcStatus(absl::FailedPreconditionError(
        "this store has no disk tier that works; start it with --cache-dir, or see its log"));
  }
  for (const SegmentRecord& record : *records) {
    if (record.name.view() <= std::string_view(request->after_name())) continue;
    if (static_cast<size_t>(response->segments_size()) == limit) {
      response->set_next_after_name(response->segments().rbegin()->name());
      break;
    }
    v1::DurableSegmentInfo* info = response->add_segments();
    info->set_name(std::string(record.name.view()));
    info->set_parent(std::string(record.parent.view()));
    info->set_token_begin(record.token_begin);
    info->set_token_count(record.num_tokens);
    info->set_image_bytes(record.image_bytes);
  }
  return grpc::Status::OK;
}

grpc::Status KvStoreRpc::GetStats(grpc::ServerContext*, const v1::GetStatsRequest*,
                                  v1::GetStatsResponse* response) {
  const StoreStats stats = store_->stats();
  response->set_worker_attached(stats.worker_attached);
  response->set_worker_pid(stats.worker_pid);
  if (stats.worker_attached) ToProto(stats.geometry, response->mutable_geometry());
  response->set_model_fingerprint(stats.model_fingerprint);
  response->set_uptime_seconds(absl::ToInt64Seconds(common::SteadyNow() - started_));
  response->set_arena_pages(stats.arena_pages);
  response->set_free_pages(stats.free_pages);
  response->set_largest_free_pages(stats.largest_free_pages);
  response->set_reserved_extents(stats.reserved_extents);
  response->set_committed_segments(stats.committed_segments);
  response->set_sequences(stats.sequences);
  response->set_clusters(stats.clusters);
  response->set_num_slots(stats.data_plane.num_slots);
  response->set_used_slots(stats.data_plane.used_slots);
  response->set_evictions_in_flight(stats.data_plane.in_flight);
  response->set_log_entries_total(stats.data_plane.entries_replayed);
  response->set_log_entries_refused_total(stats.data_plane.entries_refused +
                                          stats.data_plane.cursors_refused);
  response->set_eviction_requests_total(stats.data_plane.requests_posted);
  response->set_evictions_applied_total(stats.data_plane.evictions_applied);
  response->set_evictions_kept_total(stats.data_plane.evictions_kept);
  for (const DataPlaneStats& plane : stats.planes) ToProto(plane, response->add_data_planes());
  response->set_workers_attached_total(stats.workers_attached);
  response->set_memory_adoptions_total(stats.adoptions);
  response->set_segments_refused_total(stats.segments_refused);
  response->set_named_segments(stats.named_segments);
  response->set_named_segment_pages(stats.named_pages);
  response->set_unreferenced_pages(stats.unreferenced_pages);
  response->set_prefix_cache_queries_tokens_total(stats.prefix.queries_tokens);
  response->set_prefix_cache_hits_tokens_total(stats.prefix.hits_tokens);
  response->set_named_segments_evicted_total(stats.prefix.evictions);
  response->set_row_queries_tokens_total(stats.prefix.rows_queries_tokens);
  response->set_row_hits_tokens_total(stats.prefix.rows_hits_tokens);
  if (!stats.durable.has_value()) return grpc::Status::OK;
  response->set_durable_tier(true);
  response->set_durable_segments(stats.durable->storage.segments);
  response->set_durable_bytes(stats.durable->storage.physical_bytes);
  response->set_durable_queued_segments(stats.durable->persister.queued);
  response->set_durable_persisted_total(stats.durable->persister.persisted_total);
  response->set_durable_restored_total(stats.durable->restored_total);
  response->set_durable_restore_failures_total(stats.durable->restore_failures_total);
  response->set_durable_corrupt_total(stats.durable->storage.corrupt_total);
  return grpc::Status::OK;
}

}  // namespace retroinfer::kvstore
