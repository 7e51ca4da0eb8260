#include "gpu_worker/store_link/store_client.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock/steady_now.h"
#include "common/rpc/grpc_status.h"
#include "common/shm/descriptor_protocol.h"
#include "common/status/status_macros.h"
#include "gpu_worker/store_link/declaration_parts.h"

namespace retroinfer {
namespace {

namespace v1 = kvstore::v1;

constexpr absl::Duration kTickInterval = absl::Milliseconds(20);
constexpr int kMessageBytesMax = 64 << 20;
constexpr absl::Duration kProgressLineInterval = absl::Seconds(5);

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

absl::StatusOr<common::WorkerMark> HoldMark(const v1::AttachWorkerResponse& attachment) {
  return common::WorkerMark::Hold(FolderOf(attachment.descriptor_socket_path()),
                                  common::WorkerMark::PlaceOf(attachment.attach_token()));
}

// Names one behind the other.
std::string Concatenated(const std::vector<common::SegmentName>& names) {
  std::string bytes;
  bytes.reserve(names.size() * sizeof(common::SegmentName));
  for (const common::SegmentName& name : names) bytes.append(name.view());
  return bytes;
}

v1::WantedRows ToProto(const RowsWanted& rows) {
  v1::WantedRows proto;
  proto.set_token_begin(rows.token_begin);
  proto.set_sequence_id(rows.sequence_id);
  if (rows.generated.has_value()) proto.set_generated_name(std::string(rows.generated->view()));
  proto.set_texts(Concatenated(rows.texts));
  for (const RowsWanted::Segment& segment : rows.segments) {
    v1::WantedRows::Segment* added = proto.add_segments();
    added->set_token_begin(segment.token_begin);
    added->set_num_tokens(segment.num_tokens);
    added->set_name(std::string(segment.name.view()));
  }
  proto.mutable_token_ids()->Add(rows.token_ids.begin(), rows.token_ids.end());
  return proto;
}

absl::StatusOr<Extent> FromProto(const v1::Extent& proto, uint32_t num_tokens) {
  Extent extent;
  extent.id = proto.extent_id();
  extent.first_page = proto.first_page();
  extent.num_pages = proto.num_pages();
  extent.num_tokens = num_tokens;
  extent.cached = proto.cached();
  extent.part_bytes = proto.cached() ? proto.part_bytes() : 0;
  if (proto.cached() && !proto.generated_name().empty()) {
    ASSIGN_OR_RETURN(extent.generated, common::SegmentName::FromBytes(proto.generated_name()));
  }
  return extent;
}

// Adds the names of the wanted segments, and the token ids of the first `num_with_ids`.
void AddIdentities(const ReserveRequest& wanted, size_t num_with_ids,
                   v1::ReserveExtentsRequest* request) {
  request->clear_identities();
  for (size_t i = 0; i < wanted.segments.size(); ++i) {
    if (!wanted.segments[i].identity.has_value()) return;
    const SegmentIdentity& identity = *wanted.segments[i].identity;
    v1::SegmentIdentity* proto = request->add_identities();
    proto->set_name(std::string(identity.name.view()));
    ProvenanceToProto(identity, proto);
    if (i == 0) {
      proto->set_parent(std::string(identity.parent.view()));
      proto->set_salt_hash(std::string(identity.salt_hash.view()));
    }
    if (i >= num_with_ids) continue;
    proto->mutable_token_ids()->Add(identity.token_ids.begin(), identity.token_ids.end());
  }
}

// Text names of all segments with identities, if generated ones will do.
void AddTexts(const ReserveRequest& wanted, v1::ReserveExtentsRequest* request) {
  if (!wanted.made_by.has_value()) return;
  request->set_made_by(std::string(wanted.made_by->view()));
  std::vector<common::SegmentName> texts;
  for (const SegmentWanted& segment : wanted.segments) {
    if (!segment.identity.has_value()) break;
    if (!segment.text.has_value()) return;
    texts.push_back(*segment.text);
  }
  request->set_texts(Concatenated(texts));
}

v1::ReserveExtentsRequest ToProto(const ReserveRequest& wanted) {
  v1::ReserveExtentsRequest request;
  request.set_sequence_id(wanted.sequence_id);
  request.set_cached_only(wanted.cached_only);
  request.set_takes_partial(wanted.takes_partial);
  request.set_token_begin(wanted.token_begin);
  for (const SegmentWanted& segment : wanted.segments) {
    request.add_segment_tokens(segment.num_tokens);
  }
  AddIdentities(wanted, 0, &request);
  AddTexts(wanted, &request);
  if (wanted.rows.has_value()) *request.mutable_rows() = ToProto(*wanted.rows);
  return request;
}

// Whether the answer may be one to the request; fills in what the request knows of its extents.
absl::StatusOr<std::vector<Extent>> CheckExtents(const ReserveRequest& wanted,
                                                 const v1::ReserveExtentsResponse& response) {
  const size_t num_extents = response.extents().size();
  if (wanted.cached_only ? num_extents > wanted.segments.size()
                         : num_extents != wanted.segments.size()) {
    return absl::InternalError(absl::StrCat("the store returned ", num_extents, " extents for ",
                                            wanted.segments.size(), " segments"));
  }
  std::vector<Extent> extents;
  for (int i = 0; i < response.extents_size(); ++i) {
    const std::optional<SegmentIdentity>& identity = wanted.segments[i].identity;
    ASSIGN_OR_RETURN(extents.emplace_back(),
                     FromProto(response.extents(i), wanted.segments[i].num_tokens));
    const Extent& extent = extents.back();
    if (extent.part_bytes != 0 && !wanted.takes_partial) {
      return absl::InternalError(
          absl::StrCat("the store returned a part of segment ", i, ", which is to be whole"));
    }
    if (extent.cached && !identity.has_value()) {
      return absl::InternalError(absl::StrCat("the store returned a cached extent for segment ", i,
                                              ", which has no name"));
    }
    if (extent.generated.has_value() && !wanted.made_by.has_value() &&
        extent.generated != identity->name) {
      return absl::InternalError(absl::StrCat("the store returned generated KV for segment ", i,
                                              ", which is to be exact"));
    }
  }
  return extents;
}

// The same of an answer to a request for rows.
absl::StatusOr<std::vector<Extent>> CheckRowExtents(const ReserveRequest& wanted,
                                                    const v1::ReserveExtentsResponse& response) {
  uint64_t num_tokens = 0;
  std::vector<Extent> extents;
  for (const v1::Extent& proto : response.extents()) {
    ASSIGN_OR_RETURN(extents.emplace_back(), FromProto(proto, proto.num_tokens()));
    const bool follows = num_tokens % kDenseBlockTokens == 0;
    num_tokens += proto.num_tokens();
    const bool may_be = follows && proto.cached() && proto.num_tokens() > 0 &&
                        proto.num_tokens() <= kPrefillSegmentTokens &&
                        num_tokens <= wanted.rows->token_ids.size() &&
                        (proto.generated_name().empty() || wanted.made_by.has_value()) &&
                        proto.part_bytes() == 0;
    if (may_be) continue;
    return absl::InternalError(absl::StrCat(
        "the store returned an extent of ", proto.num_tokens(), " tokens, up to token ", num_tokens,
        " of ", wanted.rows->token_ids.size(), " wanted ones, that cannot hold them"));
  }
  return extents;
}

}  // namespace

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
  const absl::Time deadline = common::SteadyNow() + timeout;
  absl::StatusOr<common::FdMessage> answer = channel.Receive(kTickInterval);
  while (absl::IsDeadlineExceeded(answer.status()) && common::SteadyNow() < deadline) {
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

absl::StatusOr<SharedMemory> StoreClient::Attach(const v1::AttachWorkerRequest& request,
                                                 absl::Duration timeout) {
  ASSIGN_OR_RETURN(const v1::AttachWorkerResponse response, AttachWorker(request, timeout));
  // Before the store notes that this process has the memory.
  absl::StatusOr<common::WorkerMark> mark = HoldMark(response);
  ASSIGN_OR_RETURN(
      common::FdMessage message,
      Greet(response.descriptor_socket_path(), TypeOf(DescriptorMessage::kHello), {}, timeout));
  const size_t num_planes = std::max(request.num_planes(), 1u);
  if (message.fds.size() != 1 + num_planes) {
    return absl::DataLossError(absl::StrCat(
        "the store sent ", message.fds.size(), " descriptors, needed are ", 1 + num_planes,
        ", of the arena and ", num_planes, " data planes: is it of another version?"));
  }
  SharedMemory memory;
  if (mark.ok()) memory.mark = *std::move(mark);
  ASSIGN_OR_RETURN(memory.arena,
                   common::SealedMemory::Adopt(std::move(message.fds[0]), response.arena_bytes()));
  if (memory.arena.bytes().size() != response.arena_bytes()) {
    return absl::DataLossError(absl::StrCat("the store announced an arena of ",
                                            response.arena_bytes(), " bytes and sent ",
                                            memory.arena.bytes().size()));
  }
  for (size_t rank = 0; rank < num_planes; ++rank) {
    ASSIGN_OR_RETURN(
        common::SealedMemory plane,
        common::SealedMemory::Adopt(std::move(message.fds[1 + rank]), response.data_plane_bytes()));
    if (plane.bytes().size() == response.data_plane_bytes()) {
      memory.data_planes.push_back(std::move(plane));
      continue;
    }
    return absl::DataLossError(absl::StrCat("the store announced data planes of ",
                                            response.data_plane_bytes(), " bytes and sent ",
                                            plane.bytes().size()));
  }
  return memory;
}

absl::Status StoreClient::HandBack(v1::AttachWorkerRequest request, SharedMemory& memory,
                                   const ExtentLedger& ledger, absl::Duration step_timeout,
                                   size_t part_bytes) {
  request.set_hand_back(true);
  ASSIGN_OR_RETURN(const v1::AttachWorkerResponse response, AttachWorker(request, step_timeout));
  absl::StatusOr<common::WorkerMark> mark = HoldMark(response);
  std::vector<int> fds = {memory.arena.fd()};
  for (const common::SealedMemory& plane : memory.data_planes) fds.push_back(plane.fd());
  RETURN_IF_ERROR(Greet(response.descriptor_socket_path(), TypeOf(DescriptorMessage::kHandBack),
                        fds, step_timeout)
                      .status());
  if (mark.ok()) memory.mark = *std::move(mark);
  return Declare(ledger, step_timeout, part_bytes);
}

absl::Status StoreClient::Declare(const ExtentLedger& ledger, absl::Duration part_timeout,
                                  size_t part_bytes) {
  DeclarationParts parts(ledger, part_bytes);
  v1::DeclareSegmentsRequest request;
  absl::Time next_line = common::SteadyNow() + kProgressLineInterval;
  while (parts.Next(&request)) {
    request.set_attach_token(token_);
    v1::DeclareSegmentsResponse response;
    RETURN_IF_ERROR(
        Call(&v1::KvStoreService::Stub::AsyncDeclareSegments, request, &response, part_timeout));
    if (common::SteadyNow() < next_line) continue;
    next_line = common::SteadyNow() + kProgressLineInterval;
    spdlog::info("told the kv_store_service {} of {} segments and sequences", parts.num_done(),
                 parts.num_elements());
  }
  return absl::OkStatus();
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
  v1::ReserveExtentsRequest request = ToProto(wanted);
  request.set_attach_token(token_);
  request.set_call_number(++call_number_);
  request.set_compute_anyway(compute_anyway);
  v1::ReserveExtentsResponse response;
  RETURN_IF_ERROR(
      Call(&v1::KvStoreService::Stub::AsyncReserveExtents, request, &response, timeout));
  // More than once only if others have committed more of these segments meanwhile.
  for (uint32_t compared = 0; response.compare_segments() > compared &&
                              response.compare_segments() <= wanted.segments.size();) {
    compared = response.compare_segments();
    AddIdentities(wanted, compared, &request);
    request.set_call_number(++call_number_);
    RETURN_IF_ERROR(
        Call(&v1::KvStoreService::Stub::AsyncReserveExtents, request, &response, timeout));
  }
  return wanted.rows.has_value() ? CheckRowExtents(wanted, response)
                                 : CheckExtents(wanted, response);
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
    ASSIGN_OR_RETURN(extents.emplace_back(),
                     FromProto(response.extents(i), segments[i].token_count()));
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
