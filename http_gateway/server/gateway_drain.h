// The end of a gateway: from the first signal to the last byte.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "absl/time/time.h"
#include "http_gateway/http/http_server.h"
#include "http_gateway/server/gateway.h"

namespace retroinfer::gateway {

// Lets live answers go on until a deadline, while new work is refused; then ends what is left with
// an error that clients can read: an event of a stream that has begun, status 503 of the rest.
// Stops the io_context when clients have taken it, after kFarewellTime at the latest.
//
// Threads: the io_context's.
class GatewayDrain {
 public:
  static constexpr absl::Duration kFarewellTime = absl::Seconds(2);

  // REQUIRES: all outlive this.
  GatewayDrain(Gateway& gateway, HttpServer& server, boost::asio::io_context& io)
      : gateway_(gateway), server_(server), io_(io), timer_(io) {}

  // The first call begins, with `timeout` for live answers; the second one ends what is left at
  // once; the third one stops the io_context.
  void Advance(absl::Duration timeout);

 private:
  enum class Phase { kServing, kDraining, kFarewell };

  void Poll();
  void EndAnswers();

  Gateway& gateway_;
  HttpServer& server_;
  boost::asio::io_context& io_;
  boost::asio::steady_timer timer_;
  Phase phase_ = Phase::kServing;
  absl::Time deadline_;  // of the phase
};

}  // namespace retroinfer::gateway
