#include "http_gateway/server/gateway_drain.h"

#include <chrono>

#include "common/clock/steady_now.h"
#include "http_gateway/server/error_response.h"

namespace retroinfer::gateway {
namespace {

constexpr auto kPollTime = std::chrono::milliseconds(20);

}  // namespace

void GatewayDrain::Advance(absl::Duration timeout) {
  switch (phase_) {
    case Phase::kServing:
      phase_ = Phase::kDraining;
      deadline_ = common::SteadyNow() + timeout;
      gateway_.StartDraining();
      server_.StartDraining();
      return Poll();
    case Phase::kDraining:
      return EndAnswers();
    case Phase::kFarewell:
      io_.stop();
  }
}

void GatewayDrain::EndAnswers() {
  phase_ = Phase::kFarewell;
  deadline_ = common::SteadyNow() + kFarewellTime;
  server_.Shutdown(DrainingError());
  Poll();
}

void GatewayDrain::Poll() {
  const bool is_done = phase_ == Phase::kDraining ? !server_.is_busy() : server_.is_empty();
  if (is_done || common::SteadyNow() >= deadline_) {
    return phase_ == Phase::kDraining ? EndAnswers() : io_.stop();
  }
  timer_.expires_after(kPollTime);  // one that was set by the phase before comes no more
  timer_.async_wait([this](const boost::system::error_code& stopped) {
    if (!stopped) Poll();
  });
}

}  // namespace retroinfer::gateway
