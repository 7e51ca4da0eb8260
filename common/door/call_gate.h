// What may pass between a client and gRPC on one HTTP/2 connection.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/door/frame_scanner.h"
#include "common/door/header_block.h"
#include "common/door/http2_frame.h"
#include "common/door/lost_call_limiter.h"
#include "common/door/token_bucket.h"

namespace retroinfer::common {

// What a call says of itself before it has begun.
struct CallHead {
  std::string_view path;           // "/package.Service/Method"
  std::string_view authorization;  // the first header of that name; empty if there is none
};

// What the connections of a door share.
//
// Threads: one at a time.
struct GateBudget {
  struct Limits {
    int64_t open_calls_max = 4096;                     // of all connections
    int64_t health_watches_max = 256;                  // of all connections, beside open_calls_max
    int64_t open_calls_per_connection_max = 1024;      // refused streams are tried again by clients
    int64_t incomplete_calls_per_connection_max = 64;  // whose request has not come in whole
    int64_t abandoned_calls_max = 4096;   // whose clients have gone; beyond it nobody new is let in
    int64_t unanswered_calls_max = 1024;  // that gRPC has at a time; each connection may add one
    int64_t unanswered_calls_at_first = 4;  // of a new connection, or one that has lost a call
    int64_t request_bytes_max = int64_t{512} << 20;  // of calls that no handler has answered yet
    double lost_calls_per_second = 1000;             // of all connections
    double lost_calls_per_second_of_connection = 2;  // beyond them it draws on the above
    double lost_calls_burst_of_connection = 8;
    double strikes_max = 500;  // lost calls beyond a connection's own until it is closed
    double strikes_forgiven_per_second = 50;
    double refused_calls_per_second = 100;  // of one connection
    double frames_per_second = 50'000;      // of one connection; large DATA frames do not count
  };

  explicit GateBudget(const Limits& bounds)
      : limits(bounds),
        lost_calls(bounds.lost_calls_per_second, std::max(1.0, bounds.lost_calls_per_second / 10)) {
  }

  // How many calls of one connection gRPC may have that no handler has answered. The more there are
  // of all connections the fewer, but never none: nobody can shut out the others.
  int64_t unanswered_max() const {
    const int64_t limit = limits.unanswered_calls_max;
    return unanswered < limit / 2 ? 32 : unanswered < limit ? 4 : 1;
  }

  const Limits limits;
  TokenBucket lost_calls;
  int64_t open_calls = 0;
  int64_t health_watches = 0;
  int64_t abandoned = 0;   // not counted in open_calls
  int64_t unanswered = 0;  // calls whose request has come in whole
  int64_t request_bytes = 0;
  uint64_t lost_calls_total = 0;
};

// Follows the frames of both directions and passes them on, with these exceptions:
//
// * Calls are refused here, before gRPC hears of them: by `admit` (the API key), beyond the limits
//   on open calls, with too large metadata. The client gets an answer as from gRPC, what belongs to
//   the call is dropped. So header blocks are decoded and written anew. A connection with many
//   such calls is read more slowly.
// * gRPC bounds the calls that are open on a connection, but one that was cancelled is not open any
//   more, while its memory stays until a thread has come to its handler; so their number had no
//   bound. Here a call lasts until its handler has *answered*, be it with the first headers alone:
//   a reset that comes before is kept back until then. Few calls without an answer are let in at a
//   time, the next ones wait in the connection: a new one begins with a few, and each answer allows
//   one more, so that those who come and go do not fill the queue that their neighbours stand in.
// * Calls of gRPC's own services end when their requests are not small (own_services.h).
// * *Lost* calls, those that end before an answer (by a reset, by their deadline, by an error in
//   their frames, with the connection), are limited by rate: reading pauses until there is a token,
//   and a connection with too many of them is closed.
// * Frames that belong to no open call, and frames without meaning to gRPC, are dropped.
//
// Threads: one at a time.
class CallGate {
 public:
  struct Policy {
    // Not OK: the call ends with that status. Null: all are admitted.
    std::function<absl::Status(const CallHead&)> admit;
    // Hears of each call that was refused here. May be null.
    std::function<void(const absl::Status&)> on_refused;
  };

  // REQUIRES: `policy` and `budget` outlive the gate.
  CallGate(const Policy* policy, GateBudget* budget, absl::Time now);
  ~CallGate();
  CallGate(const CallGate&) = delete;
  CallGate& operator=(const CallGate&) = delete;

  // Takes bytes of the client, appends what gRPC is to get to `to_server` (always whole frames),
  // and stops early when it pauses or there are kOutputMax bytes. Returns the number of bytes
  // taken.
  //
  // Returns: INVALID_ARGUMENT for what is no HTTP/2, RESOURCE_EXHAUSTED for a connection that has
  //          to be closed. Nothing more is taken then, and nothing but what GoAway() appends is
  //          to be sent to the client.
  absl::StatusOr<size_t> FromClient(std::string_view bytes, absl::Time now, std::string* to_server);
  // Takes all of gRPC's bytes and appends what the client is to get to `to_client`, and resets that
  // were kept back to `to_server`.
  absl::Status FromServer(std::string_view bytes, absl::Time now, std::string* to_client,
                          std::string* to_server);
  // Appends answers of the gate itself, where the server's frames allow it.
  void TakeAnswers(std::string* to_client);
  // Ends calls whose request has not come in whole and did not grow since `stalled_since`, and
  // calls that were cancelled before `cancelled_since` and still have no answer.
  void EndStalledCalls(absl::Time stalled_since, absl::Time cancelled_since, absl::Time now,
                       std::string* to_server);
  // After the client has gone: ends its calls, as fast as they may get lost. Returns whether none
  // is left, so that gRPC's end may be closed.
  bool Abandon(absl::Time now, std::string* to_server);
  // Appends the frame that ends the connection, if it can be sent.
  void GoAway(const absl::Status& why, std::string* to_client);

  // Until then FromClient() will take nothing.
  absl::Time paused_until() const { return paused_until_; }
  // Whether the client's greeting has come.
  bool greeted() const { return greeted_; }
  // Since when the client owes the rest of its greeting, of a header block or of a frame.
  std::optional<absl::Time> waiting_since() const { return waiting_since_; }
  int64_t open_calls() const { return static_cast<int64_t>(calls_.size()); }
  int64_t health_watches() const { return health_watches_; }  // of the open ones
  bool had_calls() const { return last_stream_ > 0; }

  static constexpr size_t kOutputMax = 64 << 10;
  static constexpr size_t kHeaderBlockMax = 64 << 10;  // as sent
  static constexpr size_t kHeaderListMax = 16 << 10;   // decoded, of a call that is passed on

 private:
  struct Call {
    bool is_health_watch = false;
    bool client_ended = false;                      // the request has come in whole
    bool answered = false;                          // a frame of the server has come
    absl::Time cancelled = absl::InfiniteFuture();  // the client's reset is kept back
    absl::Time deadline = absl::InfiniteFuture();
    absl::Time grew;                                           // when a part of the request came
    int64_t request_bytes = 0;                                 // passed on before the answer
    int64_t bytes_left = std::numeric_limits<int64_t>::max();  // that its request may still have
  };
  using Calls = std::unordered_map<uint32_t, Call>;

  // Takes some bytes of the front of `*bytes`.
  absl::Status Continue(std::string_view* bytes, absl::Time now, std::string* to_server);
  absl::Status BeginFrame(absl::Time now, std::string* to_server);
  absl::Status BeginData(absl::Time now, std::string* to_server);
  // Takes account of the frame's DATA. Not OK: the call has to end.
  absl::Status CountRequest(Call* call);
  // Passes a part of the frame's DATA on, or drops it.
  void PassData(std::string_view data, std::string* to_server);
  // Handles a frame whose payload was collected; it may have to wait (kBlocked).
  absl::Status EndFrame(absl::Time now, std::string* to_server);
  absl::Status EndHeadersFrame(absl::Time now, std::string* to_server);
  absl::Status EndHeaderBlock(absl::Time now, std::string* to_server);
  void PassHeaders(const HeaderList& headers, std::string* to_server) const;
  std::optional<absl::Status> WhyRefused(const HeaderList& headers, bool complete) const;
  void OpenCall(const HeaderList& headers, absl::Time now);
  void Refuse(uint32_t stream, bool client_ended, const absl::Status& status, absl::Time now);
  void EndReset(absl::Time now, std::string* to_server);

  void OnServerFrame(const FrameHeader& frame, absl::Time now, std::string* to_server);
  // Ends the request of a call that will be reset once it has an answer.
  void Cancel(uint32_t stream, Call* call, absl::Time now, std::string* to_server);
  // Ends an open call without an answer for the client's sake.
  void Abort(uint32_t stream, const absl::Status& status, absl::Time now, std::string* to_server);
  void OnRequestEnd(Call* call);
  void OnAnswer(Call* call);
  // One more call may go without an answer, and whoever waited for that goes on.
  void Earn(absl::Time now);
  void Close(Calls::iterator call);
  // Takes a token for a lost call, or pauses. Once the client has gone, only tokens that all
  // connections share are taken.
  bool AllowLostCall(absl::Time now);
  void ChargeLostCall(absl::Time now);
  absl::Status CheckStrikes(absl::Time now);

  const Policy* const policy_;
  GateBudget* const budget_;

  enum class Reading { kPreface, kHeader, kCollect, kPass, kDrop, kBlocked };
  Reading reading_ = Reading::kPreface;
  std::string collected_;  // of the preface, a frame's header, or a payload
  FrameHeader frame_;
  size_t left_ = 0;  // of the payload
  bool greeted_ = false;
  uint32_t headers_stream_ = 0;  // whose block is not complete; 0: none
  bool headers_end_stream_ = false;
  std::string header_block_;
  HeaderDecoder decoder_;
  uint32_t last_stream_ = 0;
  uint32_t uncredited_ = 0;  // bytes of dropped DATA whose window the client has not got back
  std::optional<absl::Time> waiting_since_;
  absl::Time paused_until_ = absl::InfinitePast();

  Calls calls_;
  int64_t health_watches_ = 0;
  int64_t incomplete_ = 0;
  bool abandoned_ = false;
  int64_t unanswered_ = 0;
  int64_t window_;  // how many calls without an answer have been earned
  TokenBucket frames_;
  TokenBucket refusals_;
  LostCallLimiter lost_calls_;

  FrameScanner server_frames_;
  std::string answers_;  // of the gate, for the client
};

}  // namespace retroinfer::common
