// A stream is in calls_ from the header block that was passed on until the server has ended it or a
// reset was passed on. All other streams up to last_stream_ have been refused or are over: what
// comes for them is dropped, and the client gets its window back for their DATA. Calls of calls_
// count in budget_->open_calls, or health_watches; with client_ended and no answer in unanswered.
#include "common/door/call_gate.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/door/grpc_headers.h"
#include "common/door/own_services.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr size_t kFrameBytesMax = 16384;    // that every peer takes; also of SETTINGS and GOAWAY
constexpr uint32_t kCreditBytes = 8192;     // window that is given back at once
constexpr uint32_t kLargeDataBytes = 1024;  // frames from this size are not counted
constexpr int64_t kLargeRequestBytes = 1 << 20;  // smaller ones pass until twice the limit
constexpr std::string_view kHealthWatch = "/grpc.health.v1.Health/Watch";

absl::Status Full(const std::string& what, std::string_view reason) {
  const absl::Status status = absl::ResourceExhaustedError(what + "; try again later");
  return WithRetry(WithReason(status, reason), absl::Seconds(1));
}

}  // namespace

CallGate::CallGate(const Policy* policy, GateBudget* budget, absl::Time now)
    : policy_(policy),
      budget_(budget),
      waiting_since_(now),
      window_(budget->limits.unanswered_calls_at_first),
      frames_(budget->limits.frames_per_second, budget->limits.frames_per_second),
      refusals_(budget->limits.refused_calls_per_second, budget->limits.refused_calls_per_second),
      lost_calls_({budget->limits.lost_calls_per_second_of_connection,
                   budget->limits.lost_calls_burst_of_connection,
                   budget->limits.strikes_forgiven_per_second, budget->limits.strikes_max},
                  &budget->lost_calls) {}

CallGate::~CallGate() {
  while (!calls_.empty()) Close(calls_.begin());
}

absl::StatusOr<size_t> CallGate::FromClient(std::string_view bytes, absl::Time now,
                                            std::string* to_server) {
  std::string_view rest = bytes;
  RETURN_IF_ERROR(CheckStrikes(now));
  while (now >= paused_until_ && to_server->size() < kOutputMax && answers_.size() < kOutputMax) {
    if (reading_ == Reading::kBlocked) {
      RETURN_IF_ERROR(EndFrame(now, to_server));
      RETURN_IF_ERROR(CheckStrikes(now));
      continue;
    }
    if (rest.empty()) break;
    RETURN_IF_ERROR(Continue(&rest, now, to_server));
  }
  const bool within = reading_ != Reading::kHeader || !collected_.empty() || headers_stream_ != 0;
  const bool payload = reading_ == Reading::kPass || reading_ == Reading::kDrop;
  if (!within || reading_ == Reading::kBlocked) {
    waiting_since_.reset();
  } else if (!waiting_since_.has_value() || (payload && rest.size() < bytes.size())) {
    waiting_since_ = now;
  }
  return bytes.size() - rest.size();
}

absl::Status CallGate::Continue(std::string_view* bytes, absl::Time now, std::string* to_server) {
  const auto take = [&](size_t most) {
    const std::string_view taken = bytes->substr(0, most);
    bytes->remove_prefix(taken.size());
    return taken;
  };
  switch (reading_) {
    case Reading::kPreface:
      collected_ += take(kHttp2Preface.size() - collected_.size());
      if (kHttp2Preface.substr(0, collected_.size()) != collected_) {
        return absl::InvalidArgumentError("the client does not speak HTTP/2");
      }
      if (collected_.size() < kHttp2Preface.size()) return absl::OkStatus();
      to_server->append(collected_);
      collected_.clear();
      reading_ = Reading::kHeader;
      return absl::OkStatus();
    case Reading::kHeader:
      collected_ += take(kFrameHeaderBytes - collected_.size());
      if (collected_.size() < kFrameHeaderBytes) return absl::OkStatus();
      frame_ = ParseFrameHeader(collected_);
      collected_.clear();
      RETURN_IF_ERROR(BeginFrame(now, to_server));
      break;
    case Reading::kCollect: {
      const std::string_view taken = take(left_);
      collected_ += taken;
      left_ -= taken.size();
      break;
    }
    case Reading::kPass:
    case Reading::kDrop: {
      const std::string_view taken = take(left_);
      left_ -= taken.size();
      if (reading_ == Reading::kPass) PassData(taken, to_server);
      break;
    }
    case Reading::kBlocked:
      break;
  }
  if (left_ > 0) return absl::OkStatus();
  if (reading_ == Reading::kCollect) return EndFrame(now, to_server);
  reading_ = Reading::kHeader;
  return absl::OkStatus();
}

absl::Status CallGate::BeginFrame(absl::Time now, std::string* to_server) {
  if (frame_.type != FrameType::kData || frame_.length < kLargeDataBytes) {
    frames_.Charge(now);
    if (!frames_.Has(now)) paused_until_ = std::max(paused_until_, frames_.NextAt(now));
  }
  if (!greeted_ && frame_.type != FrameType::kSettings) {
    return absl::InvalidArgumentError("the first frame is not SETTINGS");
  }
  greeted_ = true;
  const bool continues = frame_.type == FrameType::kContinuation;
  if (continues != (headers_stream_ != 0) || (continues && frame_.stream != headers_stream_)) {
    return absl::InvalidArgumentError(
        "a header block is interrupted, or continued where there is none");
  }
  if (frame_.type == FrameType::kData) return BeginData(now, to_server);
  RETURN_IF_ERROR(CheckClientFrame(frame_, kFrameBytesMax));
  if (continues || frame_.type == FrameType::kHeaders) {
    if (frame_.stream % 2 == 0)
      return absl::InvalidArgumentError("a client's stream has an odd number");
    if (header_block_.size() + frame_.length > kHeaderBlockMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a header block has more than ", kHeaderBlockMax, " bytes"));
    }
  }
  left_ = frame_.length;
  // PRIORITY means nothing to gRPC; unknown types are to be ignored.
  const bool known = frame_.type <= FrameType::kContinuation;
  reading_ = known && frame_.type != FrameType::kPriority ? Reading::kCollect : Reading::kDrop;
  return absl::OkStatus();
}

absl::Status CallGate::BeginData(absl::Time now, std::string* to_server) {
  if (frame_.stream == 0) return absl::InvalidArgumentError("DATA belongs to a stream");
  if (frame_.Has(frame_flag::kPadded))
    return absl::InvalidArgumentError("clients of gRPC do not pad DATA");
  reading_ = Reading::kPass;
  left_ = frame_.length;
  const auto found = calls_.find(frame_.stream);
  if (found != calls_.end()) {
    found->second.grew = now;
    const absl::Status status = CountRequest(&found->second);
    if (!status.ok()) Abort(frame_.stream, status, now, to_server);
  }
  if (frame_.length == 0) PassData("", to_server);
  return absl::OkStatus();
}

absl::Status CallGate::CountRequest(Call* call) {
  if ((call->bytes_left -= frame_.length) < 0) return TooMuchForOwnService();
  if (!call->answered) {
    call->request_bytes += frame_.length;
    budget_->request_bytes += frame_.length;
  }
  // What others keep unfinished must not stop small requests.
  const int64_t limit = budget_->limits.request_bytes_max;
  if (budget_->request_bytes <= limit * (call->request_bytes > kLargeRequestBytes ? 1 : 2)) {
    return absl::OkStatus();
  }
  return Full(absl::StrCat("requests that are being received take more than ", limit, " bytes"),
              "TOO_MANY_REQUEST_BYTES");
}

void CallGate::PassData(std::string_view data, std::string* to_server) {
  const auto found = calls_.find(frame_.stream);
  if (found != calls_.end() && !found->second.client_ended) {
    const bool ends = left_ == 0 && frame_.Has(frame_flag::kEndStream);
    AppendFrame(FrameType::kData, ends ? frame_flag::kEndStream : 0, frame_.stream, data,
                to_server);
    if (ends) OnRequestEnd(&found->second);
    return;
  }
  uncredited_ += static_cast<uint32_t>(data.size());
  if (uncredited_ < kCreditBytes) return;
  std::string increment;
  AppendBigEndian32(uncredited_, &increment);
  AppendFrame(FrameType::kWindowUpdate, 0, 0, increment, &answers_);
  uncredited_ = 0;
}

absl::Status CallGate::EndFrame(absl::Time now, std::string* to_server) {
  const auto pass = [&] {
    AppendFrame(frame_.type, frame_.flags, frame_.stream, collected_, to_server);
  };
  reading_ = Reading::kHeader;
  switch (frame_.type) {
    case FrameType::kHeaders:
    case FrameType::kContinuation:
      if (frame_.Has(frame_flag::kEndHeaders) &&
          unanswered_ >= std::min(window_, budget_->unanswered_max())) {
        reading_ = Reading::kBlocked;
        paused_until_ = std::max(paused_until_, now + absl::Milliseconds(2));
        return absl::OkStatus();
      }
      RETURN_IF_ERROR(EndHeadersFrame(now, to_server));
      break;
    case FrameType::kRstStream:
      EndReset(now, to_server);
      if (reading_ == Reading::kBlocked) return absl::OkStatus();
      break;
    case FrameType::kWindowUpdate:
      if (frame_.stream == 0 || calls_.contains(frame_.stream)) pass();
      break;
    default:
      pass();
  }
  collected_.clear();
  return absl::OkStatus();
}

void CallGate::EndReset(absl::Time now, std::string* to_server) {
  const auto found = calls_.find(frame_.stream);
  if (found == calls_.end() || found->second.cancelled < absl::InfiniteFuture()) return;
  if (found->second.answered) {
    AppendReset(frame_.stream, http2_error::kCancel, to_server);
    Close(found);
  } else if (AllowLostCall(now)) {
    Cancel(frame_.stream, &found->second, now, to_server);
  } else {
    reading_ = Reading::kBlocked;
  }
}

void CallGate::Cancel(uint32_t stream, Call* call, absl::Time now, std::string* to_server) {
  call->cancelled = now;
  if (call->client_ended) return;
  AppendFrame(FrameType::kData, frame_flag::kEndStream, stream, "", to_server);
  OnRequestEnd(call);
}

absl::Status CallGate::EndHeadersFrame(absl::Time now, std::string* to_server) {
  std::string_view fragment = collected_;
  if (frame_.type == FrameType::kHeaders) {
    headers_stream_ = frame_.stream;
    headers_end_stream_ = frame_.Has(frame_flag::kEndStream);
    size_t padding = 0;
    size_t before = 0;
    if (frame_.Has(frame_flag::kPadded)) {
      padding = fragment.empty() ? 1 : static_cast<uint8_t>(fragment[0]);
      before = 1;
    }
    if (frame_.Has(frame_flag::kPriority)) before += 5;
    if (fragment.size() < before + padding)
      return absl::InvalidArgumentError("padding is longer than its frame");
    fragment = fragment.substr(before, fragment.size() - before - padding);
  }
  header_block_ += fragment;
  if (!frame_.Has(frame_flag::kEndHeaders)) return absl::OkStatus();
  const absl::Status status = EndHeaderBlock(now, to_server);
  headers_stream_ = 0;
  header_block_.clear();
  return status;
}

absl::Status CallGate::EndHeaderBlock(absl::Time now, std::string* to_server) {
  HeaderList headers;
  bool complete = false;
  RETURN_IF_ERROR(decoder_.Decode(header_block_, kHeaderListMax, &headers, &complete));
  const uint32_t stream = headers_stream_;
  if (const auto open = calls_.find(stream); open != calls_.end()) {  // trailers
    if (open->second.client_ended) return absl::OkStatus();
    PassHeaders(headers, to_server);
    if (headers_end_stream_) OnRequestEnd(&open->second);
    return absl::OkStatus();
  }
  if (stream <= last_stream_) return absl::OkStatus();
  last_stream_ = stream;
  const bool too_many_begun =
      !headers_end_stream_ && incomplete_ >= budget_->limits.incomplete_calls_per_connection_max;
  if (too_many_begun || open_calls() >= budget_->limits.open_calls_per_connection_max) {
    AppendReset(stream, http2_error::kRefusedStream, &answers_);  // clients try again
    return absl::OkStatus();
  }
  if (const std::optional<absl::Status> refusal = WhyRefused(headers, complete)) {
    Refuse(stream, headers_end_stream_, *refusal, now);
    return absl::OkStatus();
  }
  OpenCall(headers, now);
  PassHeaders(headers, to_server);
  return absl::OkStatus();
}

void CallGate::OpenCall(const HeaderList& headers, absl::Time now) {
  Call& call = calls_[headers_stream_];
  call.grew = now;
  call.deadline = now + ParseGrpcTimeout(FindHeader(headers, "grpc-timeout"));
  const std::string_view path = FindHeader(headers, ":path");
  call.is_health_watch = path == kHealthWatch;
  if (IsOwnService(path)) call.bytes_left = kOwnServiceBytesMax;
  ++(call.is_health_watch ? budget_->health_watches : budget_->open_calls);
  health_watches_ += call.is_health_watch ? 1 : 0;
  ++incomplete_;
  if (headers_end_stream_) OnRequestEnd(&call);
}

std::optional<absl::Status> CallGate::WhyRefused(const HeaderList& headers, bool complete) const {
  const CallHead head{FindHeader(headers, ":path"), FindHeader(headers, "authorization")};
  if (policy_->admit != nullptr) {
    if (absl::Status admitted = policy_->admit(head); !admitted.ok()) return admitted;
  }
  if (!complete) {
    return WithReason(absl::ResourceExhaustedError(
                          absl::StrCat("the metadata has more than ", kHeaderListMax, " bytes")),
                      "METADATA_TOO_LARGE");
  }
  absl::Status status = CheckOwnServiceEncoding(head.path, FindHeader(headers, "grpc-encoding"));
  if (!status.ok()) return status;
  // Whoever watches over the service must still reach it when it is full.
  const bool watches = head.path == kHealthWatch;
  const int64_t limit =
      watches ? budget_->limits.health_watches_max : budget_->limits.open_calls_max;
  if ((watches ? budget_->health_watches : budget_->open_calls) < limit) return std::nullopt;
  return Full(absl::StrCat(limit, " calls are open"), "TOO_MANY_CALLS");
}

void CallGate::PassHeaders(const HeaderList& headers, std::string* to_server) const {
  std::string block;
  for (const auto& [name, value] : headers) AppendLiteralHeader(name, value, &block);
  AppendHeaderBlock(headers_stream_, headers_end_stream_, block, to_server);
}

void CallGate::Refuse(uint32_t stream, bool client_ended, const absl::Status& status,
                      absl::Time now) {
  refusals_.Charge(now);
  paused_until_ = std::max(paused_until_, refusals_.NextAt(now));
  AppendTrailersOnly(stream, status, &answers_);
  // The client need not send the rest.
  if (!client_ended) AppendReset(stream, http2_error::kNoError, &answers_);
  if (policy_->on_refused != nullptr) policy_->on_refused(status);
}

void CallGate::Abort(uint32_t stream, const absl::Status& status, absl::Time now,
                     std::string* to_server) {
  AppendReset(stream, http2_error::kCancel, to_server);
  Refuse(stream, /*client_ended=*/false, status, now);
  Close(calls_.find(stream));
}

void CallGate::EndStalledCalls(absl::Time stalled_since, absl::Time cancelled_since, absl::Time now,
                               std::string* to_server) {
  std::vector<uint32_t> stalled;
  for (const auto& [stream, call] : calls_) {
    if (call.answered) continue;
    const bool waits = !call.client_ended && call.grew < stalled_since;
    if (waits || call.cancelled < cancelled_since) stalled.push_back(stream);
  }
  for (const uint32_t stream : stalled) {
    if (!AllowLostCall(now)) return;
    const auto call = calls_.find(stream);
    if (call->second.cancelled < absl::InfiniteFuture()) {
      AppendReset(stream, http2_error::kCancel, to_server);
      Close(call);
    } else {
      Abort(stream,
            WithReason(absl::DeadlineExceededError("the rest of the request did not come in time"),
                       "REQUEST_STALLED"),
            now, to_server);
    }
  }
}

bool CallGate::Abandon(absl::Time now, std::string* to_server) {
  if (!abandoned_) {  // what a client has left must not count against others
    abandoned_ = true;
    budget_->abandoned += open_calls() - health_watches_;
    budget_->open_calls -= open_calls() - health_watches_;
  }
  for (auto call = calls_.begin(); call != calls_.end();) {
    const auto next = std::next(call);
    const auto [stream, state] = *call;
    if (state.answered) {
      AppendReset(stream, http2_error::kCancel, to_server);
      Close(call);
    } else if (state.cancelled == absl::InfiniteFuture() &&
               (state.client_ended || AllowLostCall(now))) {
      Cancel(stream, &call->second, now, to_server);
    }
    call = next;
  }
  return calls_.empty();
}

absl::Status CallGate::FromServer(std::string_view bytes, absl::Time now, std::string* to_client,
                                  std::string* to_server) {
  server_frames_.Pass(
      bytes, to_client, [&](const FrameHeader& frame) { OnServerFrame(frame, now, to_server); },
      [&] { TakeAnswers(to_client); });
  return CheckStrikes(now);
}

void CallGate::OnServerFrame(const FrameHeader& frame, absl::Time now, std::string* to_server) {
  const auto found = calls_.find(frame.stream);
  if (found == calls_.end()) return;
  Call& call = found->second;
  if (frame.type == FrameType::kRstStream) {
    if (!call.answered) ChargeLostCall(now);
    return Close(found);
  }
  if (frame.type != FrameType::kHeaders && frame.type != FrameType::kData) return;
  if (frame.Has(frame_flag::kEndStream)) {
    // gRPC itself ends a call at its deadline, whether a handler has seen it or not.
    if (!call.answered) now >= call.deadline ? ChargeLostCall(now) : Earn(now);
    return Close(found);
  }
  if (!call.answered) Earn(now);
  OnAnswer(&call);
  if (call.cancelled == absl::InfiniteFuture()) return;
  AppendReset(frame.stream, http2_error::kCancel, to_server);
  Close(found);
}

void CallGate::OnRequestEnd(Call* call) {
  if (call->client_ended) return;
  call->client_ended = true;
  --incomplete_;
  if (call->answered) return;
  ++unanswered_;
  ++budget_->unanswered;
}

void CallGate::OnAnswer(Call* call) {
  if (call->answered) return;
  call->answered = true;
  budget_->request_bytes -= std::exchange(call->request_bytes, 0);
  if (!call->client_ended) return;
  --unanswered_;
  --budget_->unanswered;
}

void CallGate::Earn(absl::Time now) {
  window_ = std::min(window_ + 1, budget_->limits.unanswered_calls_max);
  if (reading_ == Reading::kBlocked && frame_.type != FrameType::kRstStream) paused_until_ = now;
}

void CallGate::Close(Calls::iterator call) {
  OnAnswer(&call->second);
  const bool watches = call->second.is_health_watch;
  --(watches ? budget_->health_watches : abandoned_ ? budget_->abandoned : budget_->open_calls);
  incomplete_ -= call->second.client_ended ? 0 : 1;
  health_watches_ -= watches ? 1 : 0;
  calls_.erase(call);
}

void CallGate::TakeAnswers(std::string* to_client) {
  if (!server_frames_.IsAtBoundary()) return;
  to_client->append(answers_);
  answers_.clear();
}

void CallGate::GoAway(const absl::Status& why, std::string* to_client) {
  TakeAnswers(to_client);
  if (server_frames_.began() && !server_frames_.IsAtBoundary()) return;
  if (!server_frames_.began()) AppendFrame(FrameType::kSettings, 0, 0, "", to_client);
  std::string payload;
  AppendBigEndian32(last_stream_, &payload);
  AppendBigEndian32(
      absl::IsResourceExhausted(why) ? http2_error::kEnhanceYourCalm : http2_error::kProtocolError,
      &payload);
  payload.append(std::string(why.message()));
  AppendFrame(FrameType::kGoAway, 0, 0, payload, to_client);
}

bool CallGate::AllowLostCall(absl::Time now) {
  const bool allowed = abandoned_ ? lost_calls_.AllowOfAll(now, &paused_until_)
                                  : lost_calls_.Allow(now, &paused_until_);
  if (!allowed) return false;
  ++budget_->lost_calls_total;
  window_ = budget_->limits.unanswered_calls_at_first;
  return true;
}

void CallGate::ChargeLostCall(absl::Time now) {
  ++budget_->lost_calls_total;
  window_ = budget_->limits.unanswered_calls_at_first;
  paused_until_ = std::max(paused_until_, lost_calls_.Charge(now));
}

absl::Status CallGate::CheckStrikes(absl::Time now) {
  if (!lost_calls_.TooMany(now)) return absl::OkStatus();
  return absl::ResourceExhaustedError("too many calls were reset or came too late");
}

}  // namespace retroinfer::common
