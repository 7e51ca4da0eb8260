#include "gpu_worker/store_link/store_client.h"

#include <array>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/grpc_status.h"
#include "common/shm/descriptor_protocol.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

namespace v1 = kvstore::v1;

constexpr absl::Duration kTickInterval = absl::Milliseconds(20);
constexpr int kMessageBytesMax = 64 << 20;

std::chrono::system_clock::time_point DeadlineIn(absl::Duration timeout) {
  return absl::ToChronoTime(absl::Now() + timeout);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target) {
  grpc::ChannelArguments arguments;
  // A channel of its own: a shared one would still be waiting to reconnect to the old process.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  arguments.SetMaxSendMessageSize(kMessageBytesMax);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

uint32_t TypeOf(DescriptorMessage message) { return static_cast<uint32_t>(message); }

Extent FromProto(const v1::Extent& proto, uint32_t num_tokens) {
  Extent extent;
  extent.id = proto.extent_id();
  extent.first_page = proto.first_page();
  extent.num_pages = proto.num_pages();
  extent.num_tokens = num_tokens;
  extent.cached = proto.cached();
  return extent;
}

void ToProto(const LedgerExtent& entry, v1::RestoredExtent* proto) {
  proto->mutable_extent()->set_extent_id(entry.extent.id);
  proto->mutable_extent()->set_first_page(entry.extent.first_page);
  proto->mutable_extent()->set_num_pages(entry.extent.num_pages);
  proto->set_reserved_tokens(entry.extent.num_tokens);
  if (entry.token_begin.has_value()) proto->set_token_begin(*entry.token_begin);
}

}  // namespace

void ToProto(const SegmentIdentity& identity, v1::SegmentIdentity* proto) {
  proto->set_name(std::string(identity.name.view()));
  proto->set_parent(std::string(identity.parent.view()));
  proto->set_salt_hash(std::string(identity.salt_hash.view()));
  proto->mutable_token_ids()->Add(identity.token_ids.begin(), identity.token_ids.end());
}

StoreClient::StoreClient(const std::string& target, Tick tick)
    : tick_(std::move(tick)),
      channel_(MakeChannel(target)),
      stub_(v1::KvStoreService::NewStub(channel_)) {}

StoreClient::~StoreClient() {
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

template <typename Request, typename Response>
absl::Status StoreClient::Call(Method<Request, Response> method, const Request& request,
                               Response* response, absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(timeout));
  grpc::Status status;
  auto reader = (stub_.get()->*method)(&context, request, &queue_);
  reader->Finish(response, &status, this);
  bool cancelled = false;
  void* tag = nullptr;
  bool ok = false;
  while (queue_.AsyncNext(&tag, &ok, DeadlineIn(kTickInterval)) !=
         grpc::CompletionQueue::GOT_EVENT) {
    if (cancelled || detaching_ || tick_()) continue;
    context.TryCancel();
    cancelled = true;
  }
  return common::FromGrpcStatus(status);
}

absl::StatusOr<v1::AttachWorkerResponse> StoreClient::AttachWorker(
    const v1::AttachWorkerRequest& request, absl::Duration timeout) {
  v1::AttachWorkerResponse response;
  RETURN_IF_ERROR(Call(&v1::KvStoreService::Stub::AsyncAttachWorker, request, &response, timeout));
  token_ = response.attach_token();
  store_writes_arena_ = response.store_writes_arena();
  return response;
}

absl::StatusOr<common::FdMessage> StoreClient::Greet(const std::string& path, uint32_t type,
                                                     std::span<const int> fds,
                                                     absl::Duration timeout) {
  ASSIGN_OR_RETURN(common::FdChannel channel, common::FdChannel::Connect(path));
  RETURN_IF_ERROR(channel.RequireSameUser());
  RETURN_IF_ERROR(channel.Send(type, token_, fds, kTickInterval));
  const absl::Time deadline = absl::Now() + timeout;
  absl::StatusOr<common::FdMessage> answer = channel.Receive(kTickInterval);
  while (absl::IsDeadlineExceeded(answer.status()) && absl::Now() < deadline) {
    if (!tick_()) return absl::CancelledError("the link to the store is closing");
    answer = channel.Receive(kTickInterval);
  }
  RETURN_IF_ERROR(answer.status());
  if (answer->type == TypeOf(DescriptorMessage::kRefused)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the store refused the descriptor connection: ", answer->payload));
  }
  if (answer->type != TypeOf(DescriptorMessage::kWelcome)) {
    return absl::DataLossError(
        absl::StrCat("the store answered with a message of type ", answer->type));
  }
  lease_ = std::move(channel);
  return answer;
}

absl::StatusOr<uint32_t> StoreClient::ArenaPages(absl::Duration timeout) {
  v1::GetStatsResponse response;
  RETURN_IF_ERROR(
      Call(&v1::KvStoreService::Stub::AsyncGetStats, v1::GetStatsRequest(), &response, timeout));
  if (response.arena_pages() == 0) {
    return absl::UnavailableError("the store is starting: it has no arena yet");
  }
  if (response.arena_pages() >= kNoPage) {
    return absl::DataLossError(
        absl::StrCat("the store says that its arena has ", response.arena_pages(), " pages"));
  }
  return static_cast<uint32_t>(response.arena_pages());
}

absl::StatusOr<SharedMemoryPair> StoreClient::Attach(const v1::AttachWorkerRequest& request,
                                                     absl::Duration timeout) {
  ASSIGN_OR_RETURN(const v1::AttachWorkerResponse response, AttachWorker(request, timeout));
  // Before the store notes that this process has the memory.
  absl::StatusOr<common::WorkerMark> mark =
      common::WorkerMark::Hold(FolderOf(response.descriptor_socket_path()));
  ASSIGN_OR_RETURN(
      common::FdMessage message,
      Greet(response.descriptor_socket_path(), TypeOf(DescriptorMessage::kHello), {}, timeout));
  if (message.fds.size() != 2) {
    return absl::DataLossError(
        absl::StrCat("the store sent ", message.fds.size(), " descriptors, needs 2"));
  }
  SharedMemoryPair pair;
  if (mark.ok()) pair.mark = *std::move(mark);
  ASSIGN_OR_RETURN(pair.arena,
                   common::SealedMemory::Adopt(std::move(message.fds[0]), response.arena_bytes()));
  ASSIGN_OR_RETURN(pair.data_plane, common::SealedMemory::Adopt(std::move(message.fds[1]),
                                                                response.data_plane_bytes()));
  if (pair.arena.bytes().size() != response.arena_bytes() ||
      pair.data_plane.bytes().size() != response.data_plane_bytes()) {
    return absl::DataLossError(
        absl::StrCat("the store announced an arena of ", response.arena_bytes(), " bytes and sent ",
                     pair.arena.bytes().size(), ", a data plane of ", response.data_plane_bytes(),
                     " and sent ", pair.data_plane.bytes().size()));
  }
  return pair;
}

absl::Status StoreClient::HandBack(v1::AttachWorkerRequest request, const SharedMemoryPair& memory,
                                   const ExtentLedger& ledger, absl::Duration timeout) {
  request.set_hand_back(true);
  ASSIGN_OR_RETURN(const v1::AttachWorkerResponse response, AttachWorker(request, timeout));
  RETURN_IF_ERROR(Greet(response.descriptor_socket_path(), TypeOf(DescriptorMessage::kHandBack),
                        std::array{memory.arena.fd(), memory.data_plane.fd()}, timeout)
                      .status());
  return Restore(ledger, timeout);
}

absl::Status StoreClient::Restore(const ExtentLedger& ledger, absl::Duration timeout) {
  v1::RestoreSegmentsRequest request;
  request.set_attach_token(token_);
  for (const auto& [sequence_id, entries] : ledger.sequences()) {
    v1::RestoredSequence* sequence = request.add_sequences();
    sequence->set_sequence_id(sequence_id);
    uint32_t num_cached = 0;
    for (const LedgerExtent& entry : entries) {
      ToProto(entry, sequence->add_extents());
      num_cached += entry.extent.cached ? 1 : 0;
    }
    sequence->set_num_cached(num_cached);
  }
  for (const LedgerExtent* entry : ledger.NamedSegments()) {
    v1::RestoredSegment* segment = request.add_named_segments();
    ToProto(*entry, segment->mutable_extent());
    ToProto(*entry->identity, segment->mutable_identity());
  }
  v1::RestoreSegmentsResponse response;
  return Call(&v1::KvStoreService::Stub::AsyncRestoreSegments, request, &response, timeout);
}

void StoreClient::Detach(absl::Duration timeout) {
  if (!lease_.has_value()) return;
  detaching_ = true;
  v1::DetachWorkerRequest request;
  request.set_attach_token(token_);
  v1::DetachWorkerResponse response;
  // If it fails, the end of the lease's connection says the same.
  (void)Call(&v1::KvStoreService::Stub::AsyncDetachWorker, request, &response, timeout);
  detaching_ = false;
  lease_.reset();
}

absl::StatusOr<std::vector<Extent>> StoreClient::Reserve(const ReserveRequest& wanted,
                                                         bool compute_anyway,
                                                         absl::Duration timeout) {
  v1::ReserveExtentsRequest request;
  request.set_attach_token(token_);
  request.set_call_number(++call_number_);
  request.set_sequence_id(wanted.sequence_id);
  request.set_cached_only(wanted.cached_only);
  request.set_compute_anyway(compute_anyway);
  for (const SegmentWanted& segment : wanted.segments) {
    request.add_segment_tokens(segment.num_tokens);
    if (segment.identity.has_value()) ToProto(*segment.identity, request.add_identities());
  }
  v1::ReserveExtentsResponse response;
  RETURN_IF_ERROR(
      Call(&v1::KvStoreService::Stub::AsyncReserveExtents, request, &response, timeout));
  const size_t num_extents = response.extents().size();
  if (wanted.cached_only ? num_extents > wanted.segments.size()
                         : num_extents != wanted.segments.size()) {
    return absl::InternalError(absl::StrCat("the store returned ", num_extents, " extents for ",
                                            wanted.segments.size(), " segments"));
  }
  std::vector<Extent> extents;
  for (int i = 0; i < response.extents_size(); ++i) {
    extents.push_back(FromProto(response.extents(i), wanted.segments[i].num_tokens));
    if (extents.back().cached && !wanted.segments[i].identity.has_value()) {
      return absl::InternalError(absl::StrCat("the store returned a cached extent for segment ", i,
                                              ", which has no name"));
    }
  }
  return extents;
}

absl::StatusOr<std::vector<Extent>> StoreClient::Commit(uint64_t sequence_id,
                                                        const std::vector<v1::Segment>& segments,
                                                        absl::Duration timeout) {
  v1::CommitSegmentsRequest request;
  request.set_attach_token(token_);
  request.set_call_number(++call_number_);
  request.set_sequence_id(sequence_id);
  for (const v1::Segment& segment : segments) *request.add_segments() = segment;
  v1::CommitSegmentsResponse response;
  RETURN_IF_ERROR(
      Call(&v1::KvStoreService::Stub::AsyncCommitSegments, request, &response, timeout));
  if (response.extents_size() != static_cast<int>(segments.size())) {
    return absl::InternalError(absl::StrCat("the store returned ", response.extents_size(),
                                            " extents for ", segments.size(), " segments"));
  }
  std::vector<Extent> extents;
  for (int i = 0; i < response.extents_size(); ++i) {
    extents.push_back(FromProto(response.extents(i), segments[i].token_count()));
  }
  return extents;
}

absl::Status StoreClient::Release(uint64_t sequence_id, absl::Duration timeout) {
  v1::ReleaseSequenceRequest request;
  request.set_attach_token(token_);
  request.set_call_number(++call_number_);
  request.set_sequence_id(sequence_id);
  v1::ReleaseSequenceResponse response;
  return Call(&v1::KvStoreService::Stub::AsyncReleaseSequence, request, &response, timeout);
}

bool StoreClient::LeaseIsAlive() {
  if (!lease_.has_value()) return false;
  const absl::StatusOr<common::FdMessage> message = lease_->Receive(absl::ZeroDuration());
  return absl::IsDeadlineExceeded(message.status());
}

}  // namespace retroinfer
