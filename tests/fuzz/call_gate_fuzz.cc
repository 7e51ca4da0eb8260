// The bytes of a connection in both directions, as far as the door reads them. The input is a row
// of pieces: a byte for the direction and the time that passes before it, two for its length, and
// its bytes. The client's greeting comes first.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "common/door/call_gate.h"

namespace {

using namespace retroinfer::common;  // NOLINT: one file

void Require(bool condition) {
  if (!condition) std::abort();
}

constexpr std::string_view kGreeting("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  GateBudget budget(GateBudget::Limits{});
  const CallGate::Policy policy = {
      .admit =
          [](const CallHead& head) {
            return head.authorization == "Bearer k" ? absl::OkStatus()
                                                    : absl::UnauthenticatedError("no key");
          },
      .on_refused = [](const absl::Status& status) { Require(!status.ok()); }};
  absl::Time now = absl::UnixEpoch();
  {
    CallGate gate(&policy, &budget, now);
    std::string to_server;
    std::string to_client;
    std::string from_client(kGreeting);
    bool open = true;
    while (open && size >= 3) {
      const uint8_t kind = data[0];
      const size_t length = std::min<size_t>(data[1] | data[2] << 8, size - 3);
      const std::string_view piece(reinterpret_cast<const char*>(data) + 3, length);
      data += 3 + length;
      size -= 3 + length;
      now += absl::Milliseconds(1 << (kind >> 4));
      if ((kind & 1) == 0) {
        from_client += piece;
      } else {
        open = gate.FromServer(piece, now, &to_client, &to_server).ok();
      }
      if (open) {
        const auto taken = gate.FromClient(from_client, now, &to_server);
        open = taken.ok();
        if (open) {
          Require(*taken <= from_client.size());
          from_client.erase(0, *taken);
        }
      }
      if ((kind & 2) != 0) {
        gate.EndStalledCalls(now - absl::Seconds(10), now - absl::Seconds(5), now, &to_server);
      }
      gate.TakeAnswers(&to_client);
      Require(gate.open_calls() >= gate.health_watches());
      Require(to_server.size() <= from_client.size() + size + (1 << 20));
      to_server.clear();
      to_client.clear();
    }
    if (!open) gate.GoAway(absl::ResourceExhaustedError("too much"), &to_client);
    for (int i = 0; i < 3; ++i) gate.Abandon(now += absl::Seconds(1), &to_server);
  }
  // Whatever happened, a connection that is gone leaves nothing in the accounts of the others.
  Require(budget.open_calls == 0 && budget.health_watches == 0 && budget.abandoned == 0);
  Require(budget.unanswered == 0 && budget.request_bytes == 0);
  return 0;
}
