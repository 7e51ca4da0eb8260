// One client's connection.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "http_gateway/http/exchange.h"
#include "http_gateway/http/request_parser.h"
#include "http_gateway/http/transport.h"

namespace retroinfer::gateway {

struct ConnectionLimits {
  RequestParser::Limits request;
  absl::Duration head_timeout = absl::Seconds(10);  // of a TLS handshake, and of a head
  absl::Duration idle_timeout = absl::Seconds(75);  // between requests
  // A body must be there after body_timeout, and a second more for each body_bytes_per_second bytes
  // that have come.
  absl::Duration body_timeout = absl::Seconds(30);
  double body_bytes_per_second = 64 << 10;
  absl::Duration send_timeout = absl::Seconds(30);   // without a byte that the client takes
  absl::Duration linger_timeout = absl::Seconds(5);  // for a client that still sends
  // Of all connections together, from a body's first byte until its answer begins; what would
  // exceed it is refused with RESOURCE_EXHAUSTED.
  size_t bodies_bytes_max = size_t{512} << 20;
};

// What all connections of a server share.
struct ConnectionContext {
  ConnectionLimits limits;
  RequestHandler* handler = nullptr;
  boost::asio::io_context* io = nullptr;
  size_t body_bytes = 0;          // of requests whose answer has not begun
  uint64_t slow_clients = 0;      // closed because they did not read
  uint64_t stalled_requests = 0;  // closed because they did not send
};

// Reads requests, one after the other, also those that are sent before the answer to an earlier one
// (pipelining), and sends answers in their order. What is written in one turn of the loop goes out
// in one piece at its end. A client that closes its side has gone: what is being answered is
// cancelled.
//
// Threads: the io_context's.
// Owns:    itself as long as operations are pending; the socket.
class Connection final : public Exchange, public std::enable_shared_from_this<Connection> {
 public:
  // REQUIRES: `context` outlives this.
  Connection(std::shared_ptr<Transport> transport, ConnectionContext* context);
  ~Connection() override;

  void Start();
  // Looks at the time; to be called about twice a second.
  void Tick(absl::Time now);
  void Close();
  // From now on the connection ends with the next answer.
  void StartDraining();
  // Ends the answer, or refuses the request that is being read, with `status`, and closes when the
  // client has taken that; closes at once if there is neither.
  void Shutdown(const absl::Status& status);

  bool closed() const { return state_ == State::kClosed; }
  // Whether a client waits for an answer, or has not taken all of it.
  bool is_answering() const { return state_ == State::kAnswering || unsent_bytes() > 0; }
  // Whether there is a request, perhaps not a whole one, or the end of an answer.
  bool is_busy() const {
    return is_answering() || (state_ == State::kReading && parser_.has_begun());
  }
  bool had_requests() const { return had_requests_; }
  // Since when it waits for a request. REQUIRES: it does.
  absl::Time idle_since() const { return since_; }

  void Respond(HttpResponse response) override;
  void BeginStream(std::string_view content_type, const HttpHeaders& headers) override;
  void Write(std::string_view data) override;
  void End() override;
  size_t unsent_bytes() const override { return output_.size() + sending_.size() - sent_; }

 private:
  enum class State { kHandshake, kReading, kAnswering, kLingering, kClosed };

  void Read();
  void OnRead(size_t bytes);
  void OnReadFailed();
  void Parse();
  bool ParseSome();
  bool AdmitHead();
  bool ChargeBody();
  void ReleaseBody();
  void Refuse(const absl::Status& status);
  void EndAnswer(bool keep_alive);
  void Send();
  void SendNow();
  void OnSent(size_t bytes);
  void Linger();
  absl::Time ReadDeadline() const;

  const std::shared_ptr<Transport> transport_;
  ConnectionContext* const context_;
  State state_ = State::kHandshake;
  RequestParser parser_;
  absl::Time since_;       // of the state, or of the request that is being read
  bool admitted_ = false;  // the head that is being read has been let in
  bool had_requests_ = false;
  bool draining_ = false;

  std::vector<char> read_buffer_;
  std::string input_;  // read, not parsed
  bool reading_ = false;
  bool parsing_ = false;
  bool input_ended_ = false;
  size_t charged_bytes_ = 0;  // of a body, in context_->body_bytes

  std::shared_ptr<Responder> responder_;
  std::string path_;  // of the request that is answered
  bool is_http11_ = true;
  bool head_only_ = false;  // HEAD: an answer without its body
  bool keep_alive_ = true;
  bool chunked_ = false;
  bool close_when_sent_ = false;

  std::string output_;        // to be sent after sending_
  std::string sending_;       // with the write in progress
  size_t sent_ = 0;           // of sending_
  bool send_posted_ = false;  // SendNow() comes
  bool writing_ = false;      // OnSent() comes
  absl::Time last_sent_;
};

}  // namespace retroinfer::gateway
