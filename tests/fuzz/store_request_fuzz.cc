// What a worker, or whoever reaches its socket, sends to a store: series of calls with messages
// that may be anything, against a store with a small arena and a disk in memory. Whatever they are,
// each is done or refused with a code that blames the caller or a limit, the store's books stay
// right, and after the worker is gone all pages are free or of named segments.
#include <spdlog/spdlog.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/time/clock.h"
#include "common/rpc/grpc_status.h"
#include "kv_store_service/contexts/context_import.h"
#include "kv_store_service/contexts/contexts.h"
#include "kv_store_service/server/context_rpc.h"
#include "kv_store_service/server/kv_store_rpc.h"
#include "kv_store_service/store/kv_store.h"
#include "tests/fuzz/message_calls.h"
#include "tests/fuzz/store_caller.h"
#include "tests/kv_store_service/memory_copy.h"
#include "tests/kv_store_service/temporary_folder.h"
#include "tests/support/storage/in_memory_segment_storage.h"

namespace {

using namespace retroinfer;           // NOLINT: one file
using namespace retroinfer::kvstore;  // NOLINT

constexpr uint64_t kArenaBytes = 2 << 20;
constexpr uint64_t kArenaPages = kArenaBytes / kPageBytes;
constexpr uint64_t kPlaneBytesMax = 1 << 20;

void Require(bool condition) {
  if (!condition) std::abort();
}

// Returns whether it was done. What is refused blames the caller or a limit, and says why.
bool Done(const absl::Status& status) {
  if (status.ok()) return true;
  switch (status.code()) {
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      Require(!status.message().empty());
      return false;
    default:
      std::abort();
  }
}
bool Done(const grpc::Status& status) { return Done(common::FromGrpcStatus(status)); }

const std::vector<const google::protobuf::Message*>& Types() {
  static const auto* const types = new std::vector<const google::protobuf::Message*>{
      &v1::AttachWorkerRequest::default_instance(),
      &v1::ReserveExtentsRequest::default_instance(),
      &v1::CommitSegmentsRequest::default_instance(),
      &v1::ReleaseSequenceRequest::default_instance(),
      &v1::DeclareSegmentsRequest::default_instance(),
      &v1::DetachWorkerRequest::default_instance(),
      &v1::ListSegmentsRequest::default_instance(),
      &v1::ListDurableSegmentsRequest::default_instance(),
      &v1::GetStatsRequest::default_instance(),
      &v1::SaveContextRequest::default_instance(),
      &v1::ListContextsRequest::default_instance(),
      &v1::PinContextRequest::default_instance(),
      &v1::UnpinContextRequest::default_instance(),
      &v1::RemoveContextRequest::default_instance(),
      &v1::VerifyContextRequest::default_instance(),
      &v1::ExportContextRequest::default_instance(),
      &v1::ImportContextRequest::default_instance(),
      &v1::FindClustersRequest::default_instance(),
  };
  return *types;
}

// A store of one input.
class Store {
 public:
  explicit Store(const std::string& folder) {
    KvStore::Options options;
    options.disk_drain_timeout = absl::Seconds(30);
    options.attach_timeout = absl::Seconds(100);
    options.handed_back_bytes_max = kArenaBytes;
    options.make_plane_memory = [](uint64_t bytes) -> absl::StatusOr<common::SealedMemory> {
      if (bytes > kPlaneBytesMax) return absl::ResourceExhaustedError("a small machine");
      return common::SealedMemory::Create("plane", bytes, 1);
    };
    store_ = std::make_unique<KvStore>(options, StateFile(folder + "/state"));
    DurableTierOptions tier;
    tier.folder = folder;
    tier.mode = PersistMode::kOnDemand;
    tier.reserve_bytes = 0;
    tier.restore_threads = 1;
    tier.limits.cap_bytes = kArenaBytes;
    KvStore* const store = store_.get();
    store_->SetDurableTier(std::make_unique<DurableTier>(
        tier, MakeInMemorySegmentStorage(),
        [store](const SegmentName& name) { return store->context_segments().IsReferenced(name); }));
    store_->leases().SetArena(*common::SealedMemory::Create("arena", kArenaBytes, 1));
    contexts_ = std::make_unique<Contexts>(store);
    context_rpc_ = std::make_unique<ContextRpc>(contexts_.get());
    rpc_ = std::make_unique<KvStoreRpc>(store, "/socket");
  }

  void Call(const fuzz::Call& call) {
    const std::unique_ptr<google::protobuf::Message> message(
        Types()[call.kind % Types().size()]->New());
    if (!message->ParseFromString(call.bytes)) return;  // as gRPC does
    Try<v1::AttachWorkerRequest>(*message) || Try<v1::ReserveExtentsRequest>(*message) ||
        Try<v1::CommitSegmentsRequest>(*message) || Try<v1::ReleaseSequenceRequest>(*message) ||
        Try<v1::DeclareSegmentsRequest>(*message) || Try<v1::DetachWorkerRequest>(*message) ||
        Try<v1::ListSegmentsRequest>(*message) || Try<v1::ListDurableSegmentsRequest>(*message) ||
        Try<v1::GetStatsRequest>(*message) || Try<v1::SaveContextRequest>(*message) ||
        Try<v1::ListContextsRequest>(*message) || Try<v1::PinContextRequest>(*message) ||
        Try<v1::UnpinContextRequest>(*message) || Try<v1::RemoveContextRequest>(*message) ||
        Try<v1::VerifyContextRequest>(*message) || Try<v1::ExportContextRequest>(*message) ||
        Try<v1::ImportContextRequest>(*message) || Try<v1::FindClustersRequest>(*message);
    const StoreStats stats = store_->stats();
    Require(stats.free_pages <= kArenaPages && stats.largest_free_pages <= stats.free_pages);
    Require(stats.unreferenced_pages <= stats.named_pages && stats.named_pages <= kArenaPages);
  }

  void End() {
    store_->leases().EndLease(caller_.token(), "the end");
    WaitForDisk();
    const StoreStats stats = store_->stats();
    Require(stats.sequences == 0 && stats.reserved_extents == 0);
    Require(stats.free_pages + stats.named_pages == kArenaPages);
  }

 private:
  template <typename Request>
  bool Try(google::protobuf::Message& message) {
    auto* const request = dynamic_cast<Request*>(&message);
    if (request != nullptr) Handle(request);
    return request != nullptr;
  }
  void WaitForDisk() { Require(store_->tier()->Drain(absl::Seconds(30))); }

  void Handle(v1::AttachWorkerRequest* request) {
    caller_.Complete(request);
    if (request->hand_back()) store_->leases().EndLease(caller_.token(), "its connection broke");
    v1::AttachWorkerResponse response;
    if (!Done(rpc_->AttachWorker(nullptr, request, &response))) return;
    caller_.Attached(response.attach_token());
    if (request->hand_back()) {
      if (!caller_.memory().arena.valid()) return;
      (void)Done(store_->leases().HandBack(caller_.token(), 1, CopyOf(caller_.memory())));
      return;
    }
    auto pair = store_->leases().ClaimDescriptors(caller_.token(), 1);
    if (Done(pair.status())) caller_.TakeMemory(*std::move(pair), kArenaBytes);
  }
  void Handle(v1::ReserveExtentsRequest* request) {
    caller_.Complete(request);
    // Names first, of every second sequence.
    v1::ReserveExtentsRequest sent = *request;
    if (request->sequence_id() % 2 != 0) {
      for (auto& identity : *sent.mutable_identities()) identity.clear_token_ids();
    }
    v1::ReserveExtentsResponse response;
    if (!Done(rpc_->ReserveExtents(nullptr, &sent, &response))) return WaitForDisk();
    if (response.compare_segments() > 0) {
      Require(response.extents_size() == 0);
      Require(static_cast<int>(response.compare_segments()) <= sent.identities_size());
      response.Clear();
      request->clear_call_number();
      caller_.Complete(request);
      if (!Done(rpc_->ReserveExtents(nullptr, request, &response))) return;
    }
    Require(sent.cached_only() || response.extents_size() == sent.segment_tokens_size());
    caller_.Granted(*request, response);
  }
  void Handle(v1::CommitSegmentsRequest* request) {
    caller_.Complete(request);
    v1::CommitSegmentsResponse response;
    if (!Done(rpc_->CommitSegments(nullptr, request, &response))) return;
    Require(response.extents_size() == request->segments_size());
    caller_.Committed(*request, response);
  }
  void Handle(v1::ReleaseSequenceRequest* request) {
    caller_.Complete(request);
    v1::ReleaseSequenceResponse response;
    (void)Done(rpc_->ReleaseSequence(nullptr, request, &response));
  }
  void Handle(v1::DeclareSegmentsRequest* request) {
    caller_.Complete(request);
    v1::DeclareSegmentsResponse response;
    if (Done(rpc_->DeclareSegments(nullptr, request, &response))) caller_.Declared();
  }
  void Handle(v1::DetachWorkerRequest* request) {
    caller_.Complete(request);
    v1::DetachWorkerResponse response;
    (void)Done(rpc_->DetachWorker(nullptr, request, &response));
  }
  void Handle(v1::ListSegmentsRequest* request) {
    v1::ListSegmentsResponse response;
    (void)Done(rpc_->ListSegments(nullptr, request, &response));
  }
  void Handle(v1::FindClustersRequest* request) {
    v1::FindClustersResponse response;
    (void)Done(rpc_->FindClusters(nullptr, request, &response));
  }
  void Handle(v1::ListDurableSegmentsRequest* request) {
    v1::ListDurableSegmentsResponse response;
    (void)Done(rpc_->ListDurableSegments(nullptr, request, &response));
  }
  void Handle(v1::GetStatsRequest* request) {
    v1::GetStatsResponse response;
    Require(rpc_->GetStats(nullptr, request, &response).ok());
  }
  void Handle(v1::SaveContextRequest* request) {
    caller_.Complete(request);
    v1::SaveContextResponse response;
    if (Done(context_rpc_->SaveContext(nullptr, request, &response))) WaitForDisk();
  }
  void Handle(v1::ListContextsRequest* request) {
    caller_.CompleteTenant(request);
    v1::ListContextsResponse response;
    (void)Done(context_rpc_->ListContexts(nullptr, request, &response));
  }
  void Handle(v1::PinContextRequest* request) {
    caller_.CompleteName(request);
    v1::PinContextResponse response;
    (void)Done(context_rpc_->PinContext(nullptr, request, &response));
  }
  void Handle(v1::UnpinContextRequest* request) {
    caller_.CompleteName(request);
    v1::UnpinContextResponse response;
    (void)Done(context_rpc_->UnpinContext(nullptr, request, &response));
  }
  void Handle(v1::RemoveContextRequest* request) {
    caller_.CompleteName(request);
    v1::RemoveContextResponse response;
    (void)Done(context_rpc_->RemoveContext(nullptr, request, &response));
  }
  void Handle(v1::VerifyContextRequest* request) {
    caller_.CompleteName(request);
    v1::VerifyContextResponse response;
    if (!Done(context_rpc_->VerifyContext(nullptr, request, &response))) return;
    Require(response.damaged_segments() == 0);  // nothing damages what is on this disk
  }
  // The writer and the reader of streams are gRPC's own; what they carry is all the same.
  void Handle(v1::ExportContextRequest* request) {
    caller_.CompleteName(request);
    const auto tenant = Hash256::FromBytes(request->salt_hash());
    if (!Done(tenant.status())) return;
    std::string file;
    const auto to_file = [&file](std::string_view bytes) {
      file.append(bytes);
      return absl::OkStatus();
    };
    if (Done(contexts_->Export(*tenant, request->name(), to_file))) caller_.Exported(file);
  }
  void Handle(v1::ImportContextRequest* request) {
    caller_.Complete(request);
    ContextToSave context;
    const auto tenant = Hash256::FromBytes(request->salt_hash());
    const auto root = Hash256::FromBytes(request->root());
    if (!Done(tenant.status()) || !Done(root.status()) || request->name().size() > 256) return;
    context.salt_hash = *tenant;
    context.root = *root;
    context.name = request->name();
    context.pinned = request->pinned();
    auto import = ContextImport::Begin(contexts_.get(), context.salt_hash);
    Require(import.ok());
    std::string_view data = request->data();
    while (!data.empty()) {
      const size_t piece = std::min<size_t>(data.size(), 100'000);
      if (!Done(import->Append(data.substr(0, piece)))) return;
      data.remove_prefix(piece);
    }
    context.replace = request->replace();
    (void)Done(import->Finish(std::move(context)).status());
  }

  std::unique_ptr<KvStore> store_;
  std::unique_ptr<Contexts> contexts_;
  std::unique_ptr<ContextRpc> context_rpc_;
  std::unique_ptr<KvStoreRpc> rpc_;
  fuzz::StoreCaller caller_;
};

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return fuzz::MutateCalls(data, size, max_size, seed, Types());
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TemporaryFolder folder;  // removed when the fuzzer ends
  static const bool silent = [] {
    fuzz::SilenceProtobuf();
    spdlog::set_level(spdlog::level::off);
    return true;
  }();
  (void)silent;
  Store store(folder.path());
  for (const fuzz::Call& call : fuzz::ReadCalls({reinterpret_cast<const char*>(data), size})) {
    store.Call(call);
  }
  store.End();
  return 0;
}
