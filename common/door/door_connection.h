// One connection of a client, between its socket and gRPC's.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/door/call_gate.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::common {

// Moves bytes, through TLS if there is any, from either side through the gate to the other, as far
// as both sides take them: a side that does not read is not read for. Buffers stay under about
// 200 KiB.
//
// Threads: one at a time; nothing blocks.
// Owns:    both sockets.
class DoorConnection {
 public:
  struct Timeouts {
    absl::Duration greeting = absl::Seconds(10);          // TLS and the preface
    absl::Duration frame = absl::Seconds(20);             // a header block; silence within a frame
    absl::Duration request = absl::Seconds(30);           // silence within a request
    absl::Duration request_when_full = absl::Seconds(2);  // the same at 3/4 of open_calls_max
    absl::Duration unread = absl::Seconds(60);            // the client takes nothing
    absl::Duration farewell = absl::Seconds(1);           // to send why it is closed
    absl::Duration cancelled = absl::Seconds(2);          // a cancelled call gets no answer
  };
  struct Context {  // all outlive the connection
    const CallGate::Policy* policy;
    GateBudget* budget;
    // Gives gRPC its end of a socket pair.
    std::function<void(int fd)> hand_over;
    // Called once there is a socket to be watched for gRPC's bytes.
    std::function<void(DoorConnection*)> watch_server;
    Timeouts timeouts;
  };

  // `tls` null: plain text.
  DoorConnection(const Context* context, UniqueFd client, SSL_CTX* tls, absl::Time now);
  ~DoorConnection();
  DoorConnection(const DoorConnection&) = delete;
  DoorConnection& operator=(const DoorConnection&) = delete;

  // What an edge-triggered poll said.
  void OnClientEvent(bool readable, bool writable);
  void OnServerEvent(bool readable, bool writable);

  // Moves what can be moved, at most a few buffers full. Returns true if there may be more.
  bool Pump(absl::Time now);
  // Ends what has lasted too long. Called a few times a second.
  void Tick(absl::Time now);
  // Ends the connection; its farewell needs further calls of Pump().
  void Close(const absl::Status& why, absl::Time now);

  bool done() const { return client_state_ == Client::kGone && server_state_ == Server::kGone; }
  // TLS has not been agreed on.
  bool greeting() const { return client_state_ == Client::kHandshake; }
  // The client is gone, but not all of its calls.
  bool draining() const { return server_state_ == Server::kDraining; }
  // Why it was closed here; OK if one of the sides closed it.
  const absl::Status& error() const { return error_; }
  absl::Time paused_until() const { return gate_.paused_until(); }
  // Since when it is open without calls but health watches; InfiniteFuture while it is not.
  absl::Time idle_since() const { return idle_since_; }
  bool had_calls() const { return gate_.had_calls(); }
  int client_fd() const { return client_.get(); }
  int server_fd() const { return server_.get(); }

 private:
  enum class Client { kHandshake, kOpen, kFarewell, kGone };
  enum class Server { kNone, kOpen, kDraining, kGone };

  bool Handshake(absl::Time now);
  bool MoveFromClient(absl::Time now);
  bool MoveFromServer(absl::Time now);
  bool FlushToClient(absl::Time now);
  bool FlushToServer(absl::Time now);
  bool SayFarewell(absl::Time now);
  bool Drain(absl::Time now);
  void OpenServer();
  void LoseClient();
  void LoseServer(absl::Time now);
  // Bytes moved; 0: not now; -1: the end.
  ssize_t ReadClient(char* data, size_t size);
  ssize_t WriteClient(std::string_view data);
  bool HandleTlsResult(int result);

  const Context* const context_;
  UniqueFd client_;
  UniqueFd server_;
  SSL* tls_ = nullptr;
  Client client_state_;
  Server server_state_ = Server::kNone;
  CallGate gate_;
  absl::Status error_;
  const absl::Time began_;
  absl::Time farewell_since_;
  absl::Time idle_since_;
  absl::Time unread_since_ = absl::InfiniteFuture();  // the client has not taken bytes

  bool client_readable_ = true;
  bool client_writable_ = true;
  bool server_readable_ = false;
  bool server_writable_ = true;
  bool write_ended_ = false;  // the farewell has been sent

  std::string from_client_;  // not yet taken by the gate
  std::string to_server_;
  std::string to_client_;
};

}  // namespace retroinfer::common
