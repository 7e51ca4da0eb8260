#include "kv_store_service/server/context_rpc.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/kv/kv_geometry.h"
#include "common/rpc/bounded_service.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "kv_store_service/contexts/context_import.h"

namespace retroinfer::kvstore {
namespace {

using common::ToGrpcStatus;

// Each holds a thread, of which the worker's own calls need some.
constexpr int kTransfersMax = 8;
constexpr int64_t kTimeToLiveSecondsMax = int64_t{100} * 365 * 86400;

absl::Status Invalid(const std::string& message) {
  return common::WithReason(absl::InvalidArgumentError(message), "INVALID_CONTEXT");
}

void SetTime(absl::Time time, google::protobuf::Timestamp* proto) {
  const int64_t micros = absl::ToUnixMicros(time);
  proto->set_seconds(micros / 1'000'000);
  proto->set_nanos(static_cast<int32_t>(micros % 1'000'000) * 1000);
}

v1::ContextTier TierOf(const ContextListing& listing) {
  const size_t all = listing.record.segments.size();
  if (listing.missing > 0) return v1::CONTEXT_TIER_PARTLY_LOST;
  if (listing.on_disk < all) return v1::CONTEXT_TIER_ARENA;
  return listing.in_arena == all ? v1::CONTEXT_TIER_ARENA_AND_DISK : v1::CONTEXT_TIER_DISK;
}

void ToProto(const ContextListing& listing, v1::ContextInfo* proto) {
  proto->set_name(listing.record.context_name);
  proto->set_num_tokens(listing.record.num_tokens);
  proto->set_reusable_tokens(listing.reusable_tokens);
  proto->set_bytes(listing.bytes);
  proto->set_num_segments(static_cast<uint32_t>(listing.record.segments.size()));
  proto->set_segments_in_arena(static_cast<uint32_t>(listing.in_arena));
  proto->set_segments_on_disk(static_cast<uint32_t>(listing.on_disk));
  proto->set_tier(TierOf(listing));
  proto->set_pinned(listing.record.pinned);
  SetTime(listing.record.created, proto->mutable_created());
  SetTime(listing.last_use, proto->mutable_last_used());
  if (listing.record.expires != absl::InfiniteFuture()) {
    SetTime(listing.record.expires, proto->mutable_expires());
  }
}

absl::StatusOr<Hash256> ReadHash(std::string_view bytes, const char* field) {
  auto hash = Hash256::FromBytes(bytes);
  if (hash.ok()) return hash;
  return Invalid(absl::StrCat(field, ": ", std::string(hash.status().message())));
}

absl::Status CheckName(const std::string& name) {
  if (!name.empty() && name.size() <= kMaxContextNameBytes) return absl::OkStatus();
  return Invalid(absl::StrCat("the name of a context has 1 to ", kMaxContextNameBytes,
                              " bytes, this one has ", name.size()));
}

absl::StatusOr<ContextToSave> FromProto(const v1::SaveContextRequest& proto) {
  ContextToSave context;
  RETURN_IF_ERROR(CheckName(proto.name()));
  context.name = proto.name();
  ASSIGN_OR_RETURN(context.salt_hash, ReadHash(proto.salt_hash(), "salt_hash"));
  ASSIGN_OR_RETURN(context.root, ReadHash(proto.root(), "root"));
  context.sink_token_ids.assign(proto.sink_token_ids().begin(), proto.sink_token_ids().end());
  const auto count = static_cast<size_t>(proto.segments_size());
  if (context.sink_token_ids.size() != kSinkTokens || count == 0 || count > kMaxContextSegments) {
    return Invalid(absl::StrCat("a context has ", kSinkTokens, " sink tokens and 1 to ",
                                kMaxContextSegments, " segments, not ",
                                context.sink_token_ids.size(), " and ", count));
  }
  for (const std::string& segment : proto.segments()) {
    ASSIGN_OR_RETURN(const SegmentName name, ReadHash(segment, "segments"));
    context.segments.push_back(name);
  }
  context.num_tokens = proto.num_tokens();
  context.pinned = proto.pinned();
  context.replace = proto.replace();
  if (proto.has_time_to_live()) {
    const google::protobuf::Duration& ttl = proto.time_to_live();
    if (ttl.seconds() < 0 || ttl.nanos() < 0 || ttl.nanos() >= 1'000'000'000 ||
        ttl.seconds() > kTimeToLiveSecondsMax || (ttl.seconds() == 0 && ttl.nanos() == 0)) {
      return Invalid("time_to_live must be more than 0 and at most 100 years");
    }
    context.time_to_live = absl::Seconds(ttl.seconds()) + absl::Nanoseconds(ttl.nanos());
  }
  return context;
}

// Reads tenant and name, calls, and writes the result.
template <typename Request, typename Call>
grpc::Status ForOne(const Request& request, Call call) {
  const auto salt_hash = ReadHash(request.salt_hash(), "salt_hash");
  if (!salt_hash.ok()) return ToGrpcStatus(salt_hash.status());
  if (const absl::Status name = CheckName(request.name()); !name.ok()) return ToGrpcStatus(name);
  return ToGrpcStatus(call(*salt_hash));
}

}  // namespace

std::unique_ptr<grpc::Service> ContextRpc::Bounded() {
  auto service = std::make_unique<common::BoundedService<ContextRpc>>(
      v1::ContextStoreService::service_full_name(), this);
  service->Add("SaveContext", &ContextRpc::SaveContext);
  service->Add("ListContexts", &ContextRpc::ListContexts);
  service->Add("PinContext", &ContextRpc::PinContext);
  service->Add("UnpinContext", &ContextRpc::UnpinContext);
  service->Add("RemoveContext", &ContextRpc::RemoveContext);
  service->Add("VerifyContext", &ContextRpc::VerifyContext);
  service->Add("ExportContext", &ContextRpc::ExportContext);
  service->Add("ImportContext", &ContextRpc::Import);
  return service;
}

grpc::Status ContextRpc::SaveContext(grpc::ServerContext*, const v1::SaveContextRequest* request,
                                     v1::SaveContextResponse* response) {
  const auto context = FromProto(*request);
  if (!context.ok()) return ToGrpcStatus(context.status());
  const auto progress = contexts_.Save(*context);
  if (!progress.ok()) return ToGrpcStatus(progress.status());
  response->set_durable_segments(static_cast<uint32_t>(progress->durable));
  response->set_queued_segments(static_cast<uint32_t>(progress->queued));
  response->set_missing_segments(static_cast<uint32_t>(progress->missing));
  if (progress->saved.has_value()) ToProto(*progress->saved, response->mutable_saved());
  return grpc::Status::OK;
}

grpc::Status ContextRpc::ListContexts(grpc::ServerContext*, const v1::ListContextsRequest* request,
                                      v1::ListContextsResponse* response) {
  const auto salt_hash = ReadHash(request->salt_hash(), "salt_hash");
  if (!salt_hash.ok()) return ToGrpcStatus(salt_hash.status());
  const auto listings = contexts_.List(*salt_hash);
  if (!listings.ok()) return ToGrpcStatus(listings.status());
  for (const ContextListing& listing : *listings) ToProto(listing, response->add_contexts());
  return grpc::Status::OK;
}

grpc::Status ContextRpc::PinContext(grpc::ServerContext*, const v1::PinContextRequest* request,
                                    v1::PinContextResponse* response) {
  return ForOne(*request, [&](const Hash256& salt_hash) -> absl::Status {
    ASSIGN_OR_RETURN(const ContextListing listing,
                     contexts_.SetPinned(salt_hash, request->name(), true));
    ToProto(listing, response->mutable_context());
    return absl::OkStatus();
  });
}

grpc::Status ContextRpc::UnpinContext(grpc::ServerContext*, const v1::UnpinContextRequest* request,
                                      v1::UnpinContextResponse* response) {
  return ForOne(*request, [&](const Hash256& salt_hash) -> absl::Status {
    ASSIGN_OR_RETURN(const ContextListing listing,
                     contexts_.SetPinned(salt_hash, request->name(), false));
    ToProto(listing, response->mutable_context());
    return absl::OkStatus();
  });
}

grpc::Status ContextRpc::RemoveContext(grpc::ServerContext*,
                                       const v1::RemoveContextRequest* request,
                                       v1::RemoveContextResponse* response) {
  return ForOne(*request, [&](const Hash256& salt_hash) -> absl::Status {
    ASSIGN_OR_RETURN(const RemovedContext removed, contexts_.Remove(salt_hash, request->name()));
    response->set_removed_segments(static_cast<uint32_t>(removed.segments));
    response->set_removed_bytes(removed.bytes);
    return absl::OkStatus();
  });
}

absl::StatusOr<std::shared_ptr<void>> ContextRpc::BeginTransfer() {
  std::shared_ptr<void> transfer(nullptr, [this](void*) { --num_transfers_; });
  if (++num_transfers_ <= kTransfersMax) return transfer;
  return common::WithReason(
      absl::ResourceExhaustedError(
          absl::StrCat(kTransfersMax,
                       " contexts are being imported, exported or verified already, which is all "
                       "that is done at a time; try again later")),
      "TOO_MANY_TRANSFERS");
}

grpc::Status ContextRpc::VerifyContext(grpc::ServerContext* context,
                                       const v1::VerifyContextRequest* request,
                                       v1::VerifyContextResponse* response) {
  return ForOne(*request, [&](const Hash256& salt_hash) -> absl::Status {
    ASSIGN_OR_RETURN(const auto transfer, BeginTransfer());
    ASSIGN_OR_RETURN(const ContextVerification report,
                     contexts_.Verify(salt_hash, request->name(), [context] {
                       return context != nullptr && context->IsCancelled();
                     }));
    response->set_num_segments(static_cast<uint32_t>(report.segments));
    response->set_intact_segments(static_cast<uint32_t>(report.intact));
    response->set_missing_segments(static_cast<uint32_t>(report.missing));
    response->set_damaged_segments(static_cast<uint32_t>(report.damaged));
    response->set_bytes_checked(report.bytes_checked);
    for (const std::string& problem : report.problems) response->add_problems(problem);
    return absl::OkStatus();
  });
}

grpc::Status ContextRpc::ExportContext(grpc::ServerContext*,
                                       const v1::ExportContextRequest* request,
                                       grpc::ServerWriter<v1::ExportContextResponse>* writer) {
  return ForOne(*request, [&](const Hash256& salt_hash) -> absl::Status {
    ASSIGN_OR_RETURN(const auto transfer, BeginTransfer());
    return contexts_.Export(salt_hash, request->name(), [writer](std::string_view bytes) {
      v1::ExportContextResponse response;
      response.set_data(std::string(bytes));
      if (writer->Write(response)) return absl::OkStatus();
      return absl::CancelledError("the client is gone");
    });
  });
}

grpc::Status ContextRpc::Import(grpc::ServerContext* server_context,
                                common::BoundedReader<v1::ImportContextRequest>* reader,
                                v1::ImportContextResponse* response) {
  reader->SendInitialMetadata();  // tells the door that the call has reached its handler
  const auto import = [&]() -> absl::Status {
    v1::ImportContextRequest message;
    ASSIGN_OR_RETURN(bool goes_on, reader->Read(&message));
    if (!goes_on) return Invalid("there is no message");
    ContextToSave context;
    ASSIGN_OR_RETURN(context.salt_hash, ReadHash(message.salt_hash(), "salt_hash"));
    ASSIGN_OR_RETURN(context.root, ReadHash(message.root(), "root"));
    ASSIGN_OR_RETURN(const auto transfer, BeginTransfer());
    context.name = message.name();
    context.pinned = message.pinned();
    context.replace = message.replace();
    if (!context.name.empty()) RETURN_IF_ERROR(CheckName(context.name));
    ASSIGN_OR_RETURN(ContextImport import, ContextImport::Begin(&contexts_, context.salt_hash));
    while (goes_on) {
      RETURN_IF_ERROR(import.Append(message.data()));
      ASSIGN_OR_RETURN(goes_on, reader->Read(&message));
    }
    // A client that went away has not sent its last byte.
    if (server_context->IsCancelled()) return absl::CancelledError("the client is gone");
    ASSIGN_OR_RETURN(const ImportedContext imported, import.Finish(std::move(context)));
    ToProto(imported.context, response->mutable_context());
    response->set_written_segments(static_cast<uint32_t>(imported.written));
    return absl::OkStatus();
  };
  return ToGrpcStatus(import());
}

}  // namespace retroinfer::kvstore
