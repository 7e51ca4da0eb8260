// States: kHandshake -> kReading <-> kAnswering; from both to kLingering, where what still comes is
// thrown away, and from everywhere to kClosed. A read is pending in every state but kClosed, unless
// kInputMax bytes wait to be parsed: so the client's end is noticed while it is answered. They wait
// to be parsed while a request is answered, and while the client does not take its answers.
#include "http_gateway/http/connection.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock/steady_now.h"
#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

constexpr size_t kReadBytes = 4 << 10;
constexpr size_t kBodyReadBytes = 64 << 10;
constexpr size_t kInputMax = 64 << 10;    // of pipelined requests that wait
constexpr size_t kOutputMax = 256 << 10;  // of answers, before the next request is looked at

}  // namespace

Connection::Connection(std::shared_ptr<Transport> transport, ConnectionContext* context)
    : transport_(std::move(transport)),
      context_(context),
      parser_(context->limits.request),
      since_(common::SteadyNow()),
      last_sent_(since_) {}

Connection::~Connection() { ReleaseBody(); }

void Connection::Start() {
  transport_->Handshake([self = shared_from_this()](const auto& error, size_t) {
    if (self->state_ != State::kHandshake) return;
    if (error) return self->Close();
    self->state_ = State::kReading;
    self->since_ = common::SteadyNow();
    self->Read();
  });
}

void Connection::Read() {
  if (reading_ || state_ == State::kClosed || input_ended_) return;
  if (input_.size() >= kInputMax) return;
  reading_ = true;
  const bool in_body = state_ == State::kReading && parser_.head_done();
  read_buffer_.resize(in_body ? kBodyReadBytes : kReadBytes);
  transport_->ReadSome(read_buffer_.data(), read_buffer_.size(),
                       [self = shared_from_this()](const auto& error, size_t bytes) {
                         self->reading_ = false;
                         if (self->state_ == State::kClosed) return;
                         if (error) return self->OnReadFailed();
                         self->OnRead(bytes);
                       });
}

void Connection::OnRead(size_t bytes) {
  if (state_ != State::kLingering) {
    input_.append(read_buffer_.data(), bytes);
    if (read_buffer_.size() > kReadBytes) std::vector<char>().swap(read_buffer_);
    if (state_ == State::kReading) Parse();
  }
  Read();
}

void Connection::OnReadFailed() {
  input_ended_ = true;
  if (state_ == State::kAnswering) {
    // Also a client that only closes its own side: it cannot be told from one that has gone.
    Close();
  } else if (state_ == State::kLingering || unsent_bytes() == 0) {
    Close();
  } else {
    close_when_sent_ = true;
  }
}

void Connection::Parse() {
  if (parsing_) return;
  parsing_ = true;
  while (state_ == State::kReading && !close_when_sent_ && unsent_bytes() < kOutputMax &&
         ParseSome()) {
  }
  parsing_ = false;
}

// Returns whether something has changed.
bool Connection::ParseSome() {
  const bool had_begun = parser_.has_begun();
  const absl::StatusOr<size_t> used = parser_.Put(input_);
  if (!used.ok()) {
    Refuse(used.status());
    return false;
  }
  input_.erase(0, *used);
  if (!had_begun && parser_.has_begun()) since_ = common::SteadyNow();
  if (parser_.head_done() && !admitted_ && !AdmitHead()) return false;
  if (!ChargeBody()) return false;
  if (!parser_.done()) return *used > 0;
  HttpRequest request = parser_.Take();  // its bytes stay charged
  admitted_ = false;
  path_ = request.path;
  is_http11_ = request.is_http11;
  head_only_ = request.method == "HEAD";
  keep_alive_ = request.keep_alive && !draining_;
  state_ = State::kAnswering;
  had_requests_ = true;
  since_ = common::SteadyNow();
  auto responder = context_->handler->Handle(std::move(request), shared_from_this());
  if (state_ == State::kAnswering) responder_ = std::move(responder);
  return true;
}

bool Connection::AdmitHead() {
  const HttpRequest& head = parser_.head();
  is_http11_ = head.is_http11;
  head_only_ = head.method == "HEAD";
  keep_alive_ = head.keep_alive;
  if (const absl::Status status = context_->handler->Admit(head); !status.ok()) {
    Refuse(status);
    return false;
  }
  admitted_ = true;
  if (head.expects_continue && head.is_http11 && !parser_.done() && input_.empty()) {
    output_.append("HTTP/1.1 100 Continue\r\n\r\n");
    Send();
  }
  return true;
}

bool Connection::ChargeBody() {
  const size_t bytes = parser_.body_bytes();
  context_->body_bytes += bytes - charged_bytes_;
  charged_bytes_ = bytes;
  if (context_->body_bytes <= context_->limits.bodies_bytes_max) return true;
  ReleaseBody();
  Refuse(common::WithRetry(
      common::WithReason(
          absl::ResourceExhaustedError(
              "the requests that wait for their answers take too much memory together"),
          "TOO_MANY_REQUEST_BYTES"),
      absl::Seconds(1)));
  return false;
}

void Connection::ReleaseBody() {
  if (charged_bytes_ == 0) return;  // the server may be gone before the last handler is
  context_->body_bytes -= charged_bytes_;
  charged_bytes_ = 0;
}

void Connection::Refuse(const absl::Status& status) {
  // What comes after the bytes that were refused has no meaning.
  const std::string path = parser_.head_done() ? parser_.head().path : "";
  HttpResponse response = context_->handler->Refusal(status, path);
  context_->handler->OnAnswer(path, response.status);
  output_.append(FormatHead(response.status, response.content_type, response.headers,
                            static_cast<int64_t>(response.body.size()), true, false));
  if (!head_only_ || !parser_.head_done()) output_.append(response.body);
  close_when_sent_ = true;
  Send();
}

void Connection::Respond(HttpResponse response) {
  if (state_ != State::kAnswering || chunked_) return;
  context_->handler->OnAnswer(path_, response.status);
  output_.append(FormatHead(response.status, response.content_type, response.headers,
                            static_cast<int64_t>(response.body.size()), is_http11_, keep_alive_));
  if (!head_only_) output_.append(response.body);
  EndAnswer(keep_alive_);
}

void Connection::BeginStream(std::string_view content_type, const HttpHeaders& headers) {
  if (state_ != State::kAnswering) return;
  if (!is_http11_) keep_alive_ = false;
  chunked_ = is_http11_;
  ReleaseBody();
  context_->handler->OnAnswer(path_, 200);
  output_.append(FormatHead(200, content_type, headers, -1, is_http11_, keep_alive_));
  Send();
}

void Connection::Write(std::string_view data) {
  if (state_ != State::kAnswering || data.empty()) return;
  if (chunked_) {
    AppendChunk(data, &output_);
  } else {
    output_.append(data);
  }
  Send();
}

void Connection::End() {
  if (state_ != State::kAnswering) return;
  if (chunked_) AppendChunk("", &output_);
  chunked_ = false;
  EndAnswer(keep_alive_);
}

void Connection::EndAnswer(bool keep_alive) {
  responder_ = nullptr;
  ReleaseBody();
  state_ = State::kReading;
  since_ = common::SteadyNow();
  if (!keep_alive || draining_) close_when_sent_ = true;
  Send();
  Parse();  // what was pipelined; nothing if this is called by Parse()
  Read();
}

void Connection::Send() {
  if (send_posted_ || writing_ || state_ == State::kClosed) return;
  send_posted_ = true;
  boost::asio::post(*context_->io, [self = shared_from_this()] {
    self->send_posted_ = false;
    self->SendNow();
  });
}

void Connection::SendNow() {
  if (writing_ || state_ == State::kClosed) return;
  if (sent_ == sending_.size()) {
    if (output_.empty()) return;
    sending_.clear();
    sending_.swap(output_);
    sent_ = 0;
  }
  last_sent_ = common::SteadyNow();
  const std::string_view rest = std::string_view(sending_).substr(sent_);
  boost::system::error_code failed;
  const size_t taken = transport_->TryWrite(rest, &failed);
  if (failed) return Close();
  if (taken > 0) return OnSent(taken);
  writing_ = true;
  transport_->WriteSome(rest, [self = shared_from_this()](const auto& error, size_t bytes) {
    self->writing_ = false;
    if (self->state_ == State::kClosed) return;
    if (error) return self->Close();
    self->OnSent(bytes);
  });
}

void Connection::OnSent(size_t bytes) {
  sent_ += bytes;
  last_sent_ = common::SteadyNow();
  if (unsent_bytes() > 0) {
    Send();
    return;
  }
  if (sending_.capacity() > kInputMax) std::string().swap(sending_);
  sending_.clear();
  sent_ = 0;
  if (close_when_sent_ && state_ != State::kAnswering) return Linger();
  const std::shared_ptr<Responder> responder = responder_;
  if (responder != nullptr) responder->OnSent();
  if (state_ == State::kReading) {
    Parse();
    Read();
  }
}

// A socket that is closed with bytes unread resets the connection, and the client may never see
// what was sent.
void Connection::Linger() {
  if (input_ended_) return Close();
  state_ = State::kLingering;
  since_ = common::SteadyNow();
  std::string().swap(input_);
  transport_->EndWriting();
  Read();
}

void Connection::StartDraining() {
  draining_ = true;
  keep_alive_ = false;
}

void Connection::Shutdown(const absl::Status& status) {
  StartDraining();
  if (state_ == State::kAnswering) {
    const std::shared_ptr<Responder> responder = responder_;
    if (responder != nullptr) responder->OnShutdown(status);
    // A stream that nobody ends has no place for an error.
    if (state_ == State::kAnswering && (chunked_ || !is_http11_)) return Close();
    if (state_ == State::kAnswering) return Respond(context_->handler->Refusal(status, path_));
    return;
  }
  if (state_ == State::kReading && parser_.has_begun() && !close_when_sent_) {
    ReleaseBody();
    return Refuse(status);
  }
  if (state_ == State::kLingering) return;  // the client has been told
  close_when_sent_ = true;
  if (unsent_bytes() == 0) Close();
}

void Connection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  ReleaseBody();
  transport_->Close();
  const std::shared_ptr<Responder> responder = std::exchange(responder_, nullptr);
  if (responder != nullptr) responder->OnClientGone();
}

absl::Time Connection::ReadDeadline() const {
  const ConnectionLimits& limits = context_->limits;
  if (state_ == State::kLingering) return since_ + limits.linger_timeout;
  if (state_ == State::kHandshake) return since_ + limits.head_timeout;
  if (!parser_.has_begun()) return since_ + limits.idle_timeout;
  if (!parser_.head_done()) return since_ + limits.head_timeout;
  return since_ + limits.body_timeout +
         absl::Seconds(static_cast<double>(parser_.body_bytes()) / limits.body_bytes_per_second);
}

void Connection::Tick(absl::Time now) {
  if (state_ == State::kClosed) return;
  if (writing_ && now > last_sent_ + context_->limits.send_timeout) {
    ++context_->slow_clients;
    return Close();
  }
  if (state_ == State::kAnswering) {
    const std::shared_ptr<Responder> responder = responder_;
    if (responder != nullptr) responder->OnTick(now);
    return;
  }
  if (close_when_sent_ && state_ == State::kReading)
    return;  // the client's reading is watched above
  if (now <= ReadDeadline()) return;
  if (state_ == State::kReading && parser_.has_begun()) {
    ++context_->stalled_requests;
    ReleaseBody();
    return Refuse(common::WithReason(
        absl::DeadlineExceededError("the rest of the request did not come in time"),
        "REQUEST_STALLED"));
  }
  Close();
}

}  // namespace retroinfer::gateway
