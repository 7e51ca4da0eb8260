// A store that only knows contexts, in the test's process: for tests of the worker and the client.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/log/check.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "retroinfer/kvstore/v1/contexts.grpc.pb.h"

namespace retroinfer {

// The first `computations` calls that save a name find everything missing. Exported files are
// "file of NAME", imported ones must be that.
class FakeContextStore final : public kvstore::v1::ContextStoreService::Service {
 public:
  FakeContextStore(const std::string& folder, int computations)
      : computations_(computations),
        target_(absl::StrCat("unix:", folder, "/fake_context_store.sock")) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(target_, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    RI_CHECK(server_ != nullptr);
  }

  const std::string& target() const { return target_; }
  kvstore::v1::SaveContextRequest last_save() {
    absl::MutexLock lock(&mutex_);
    return last_save_;
  }

  grpc::Status SaveContext(grpc::ServerContext*, const kvstore::v1::SaveContextRequest* request,
                           kvstore::v1::SaveContextResponse* response) override {
    absl::MutexLock lock(&mutex_);
    last_save_ = *request;
    if (request->name() == "too large")
      return Error(absl::StatusCode::kFailedPrecondition, "CACHE_FULL");
    if (!request->replace() && contexts_.contains({request->salt_hash(), request->name()})) {
      return Error(absl::StatusCode::kAlreadyExists, "CONTEXT_EXISTS");
    }
    if (calls_[request->name()]++ < computations_) {
      response->set_missing_segments(static_cast<uint32_t>(request->segments_size()));
      return grpc::Status::OK;
    }
    kvstore::v1::ContextInfo& info = contexts_[{request->salt_hash(), request->name()}];
    info.set_name(request->name());
    info.set_num_tokens(request->num_tokens());
    info.set_reusable_tokens(uint64_t{1024} * static_cast<uint64_t>(request->segments_size()));
    info.set_num_segments(static_cast<uint32_t>(request->segments_size()));
    info.set_tier(kvstore::v1::CONTEXT_TIER_DISK);
    info.set_pinned(request->pinned());
    info.set_bytes(3 << 20);
    *response->mutable_saved() = info;
    return grpc::Status::OK;
  }
  grpc::Status ListContexts(grpc::ServerContext*, const kvstore::v1::ListContextsRequest* request,
                            kvstore::v1::ListContextsResponse* response) override {
    absl::MutexLock lock(&mutex_);
    for (const auto& [key, info] : contexts_) {
      if (key.first == request->salt_hash()) *response->add_contexts() = info;
    }
    return grpc::Status::OK;
  }
  grpc::Status PinContext(grpc::ServerContext*, const kvstore::v1::PinContextRequest* request,
                          kvstore::v1::PinContextResponse* response) override {
    return SetPinned(*request, true, response->mutable_context());
  }
  grpc::Status UnpinContext(grpc::ServerContext*, const kvstore::v1::UnpinContextRequest* request,
                            kvstore::v1::UnpinContextResponse* response) override {
    return SetPinned(*request, false, response->mutable_context());
  }
  grpc::Status RemoveContext(grpc::ServerContext*, const kvstore::v1::RemoveContextRequest* request,
                             kvstore::v1::RemoveContextResponse* response) override {
    absl::MutexLock lock(&mutex_);
    if (contexts_.erase({request->salt_hash(), request->name()}) == 0) return NoSuch();
    response->set_removed_segments(2);
    response->set_removed_bytes(3 << 20);
    return grpc::Status::OK;
  }
  grpc::Status VerifyContext(grpc::ServerContext*, const kvstore::v1::VerifyContextRequest* request,
                             kvstore::v1::VerifyContextResponse* response) override {
    absl::MutexLock lock(&mutex_);
    if (contexts_.count({request->salt_hash(), request->name()}) == 0) return NoSuch();
    const bool damaged = request->name() == "damaged";
    response->set_num_segments(2);
    response->set_intact_segments(damaged ? 1 : 2);
    response->set_damaged_segments(damaged ? 1 : 0);
    response->set_bytes_checked(1 << 20);
    if (damaged) response->add_problems("segment 0123: wrong");
    return grpc::Status::OK;
  }
  grpc::Status ExportContext(
      grpc::ServerContext*, const kvstore::v1::ExportContextRequest* request,
      grpc::ServerWriter<kvstore::v1::ExportContextResponse>* writer) override {
    absl::MutexLock lock(&mutex_);
    if (contexts_.count({request->salt_hash(), request->name()}) == 0) return NoSuch();
    kvstore::v1::ExportContextResponse response;
    for (const std::string& part : {std::string("file of "), request->name()}) {
      response.set_data(part);
      writer->Write(response);
    }
    if (request->name() == "damaged") return Error(absl::StatusCode::kDataLoss, "DATA_LOSS");
    return grpc::Status::OK;
  }
  grpc::Status ImportContext(grpc::ServerContext*,
                             grpc::ServerReader<kvstore::v1::ImportContextRequest>* reader,
                             kvstore::v1::ImportContextResponse* response) override {
    kvstore::v1::ImportContextRequest first;
    std::string file;
    if (!reader->Read(&first)) return Error(absl::StatusCode::kInvalidArgument, "INVALID_CONTEXT");
    file = first.data();
    kvstore::v1::ImportContextRequest next;
    while (reader->Read(&next)) file += next.data();
    if (file.rfind("file of ", 0) != 0)
      return Error(absl::StatusCode::kInvalidArgument, "BAD_FILE");
    absl::MutexLock lock(&mutex_);
    const std::string name = first.name().empty() ? file.substr(8) : first.name();
    kvstore::v1::ContextInfo& info = contexts_[{first.salt_hash(), name}];
    info.set_name(name);
    info.set_pinned(first.pinned());
    *response->mutable_context() = info;
    response->set_written_segments(2);
    return grpc::Status::OK;
  }

 private:
  static grpc::Status Error(absl::StatusCode code, const char* reason) {
    return common::ToGrpcStatus(common::WithReason(absl::Status(code, "refused"), reason));
  }
  static grpc::Status NoSuch() { return Error(absl::StatusCode::kNotFound, "NO_SUCH_CONTEXT"); }

  template <typename Request>
  grpc::Status SetPinned(const Request& request, bool pinned, kvstore::v1::ContextInfo* out) {
    absl::MutexLock lock(&mutex_);
    const auto found = contexts_.find({request.salt_hash(), request.name()});
    if (found == contexts_.end()) return NoSuch();
    found->second.set_pinned(pinned);
    *out = found->second;
    return grpc::Status::OK;
  }

  const int computations_;
  const std::string target_;
  absl::Mutex mutex_;
  std::map<std::pair<std::string, std::string>, kvstore::v1::ContextInfo> contexts_
      ABSL_GUARDED_BY(mutex_);  // by salt hash and name
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mutex_);
  kvstore::v1::SaveContextRequest last_save_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace retroinfer
