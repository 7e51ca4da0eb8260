// Framed messages with descriptors between the process of rank 0 and that of another rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/shm/unique_fd.h"

namespace retroinfer {

enum class RankMessageType : uint16_t {
  kHello = 1,  // RankHello, from the rank
  kMemory,     // SharedPlan, to the rank, with the descriptors of the arena and of its data plane
  kReady,      // RankReady, from the rank
  kCommand,    // RankCommand, to the rank
  kAnswer,     // RankAnswer, from the rank: one a command, in order
  kSnapshot,   // to the rank: a store has restarted (BlockCache::RequestSnapshot); empty
  kEnd,        // to the rank: it is to end; empty
  kFailure,    // RankFailure, from the rank: it ends
};

// One received message.
struct RankMessage {
  RankMessageType type = RankMessageType::kEnd;
  std::string payload;
  std::vector<common::UniqueFd> fds;
};

// A connected unix stream socket:
//
//   OFFSET  SIZE  DESCRIPTION
//   0       4     magic "RTRK"
//   4       2     version, 1
//   6       2     type
//   8       8     payload bytes, at most kPayloadBytesMax
//   16      n     payload
//
// with up to kFdsMax descriptors as SCM_RIGHTS beside the first 16 bytes.
//
// Threads: one that sends and one that receives, at a time. After an error the channel is of no
//          use any more: the next bytes may be anywhere in a message.
// Owns:    the socket.
class RankChannel {
 public:
  static constexpr size_t kPayloadBytesMax = (size_t{256} << 20) + (size_t{1} << 20);
  static constexpr size_t kFdsMax = 4;

  // Two ends of one connection, which programs that are started do not inherit.
  static absl::StatusOr<std::pair<common::UniqueFd, common::UniqueFd>> MakePair();

  explicit RankChannel(common::UniqueFd socket) : socket_(std::move(socket)) {}

  // Sends one message. The peer gets copies of the descriptors.
  //
  // REQUIRES: fds within the limit.
  // Returns:  UNAVAILABLE if the peer is gone; DEADLINE_EXCEEDED if it has not taken all of it
  //           within `timeout`; INVALID_ARGUMENT if the payload is too long.
  absl::Status Send(RankMessageType type, std::string_view payload, absl::Duration timeout,
                    std::span<const int> fds = {});

  // Receives one message. Descriptors arrive with close-on-exec. No more memory is taken than
  // bytes have come.
  //
  // Returns: UNAVAILABLE if the peer is gone; DEADLINE_EXCEEDED after `timeout`; INVALID_ARGUMENT
  //          for anything that is no message of this protocol, or too many descriptors.
  absl::StatusOr<RankMessage> Receive(absl::Duration timeout);

  // Returns whether anything can be received, or has ended, within `timeout`.
  bool AwaitMessage(absl::Duration timeout) const;

  // Whether the peer has closed its end, whatever is still to be received. Does not block.
  bool IsClosed() const;

  // For poll().
  int fd() const { return socket_.get(); }

 private:
  absl::Status ReceiveBytes(std::span<char> bytes, absl::Time deadline,
                            std::vector<common::UniqueFd>* fds);

  common::UniqueFd socket_;
};

}  // namespace retroinfer
