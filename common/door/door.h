// The entrance of a gRPC server: its sockets, TLS, and what is let in.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/door/call_gate.h"
#include "common/door/door_connection.h"
#include "common/door/listen_socket.h"
#include "common/door/tls_certificates.h"
#include "common/log/log_rate_limiter.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::common {

struct DoorOptions {
  // "host:port" or "unix:" and an absolute path.
  std::vector<std::string> addresses;
  TlsFiles tls;  // for TCP, if there is a certificate; unix sockets are always plain
  absl::Duration reload_interval = absl::Seconds(10);  // of certificates that have changed
  int connections_max = 1024;
  double connections_per_second = 100;  // new ones; the others wait in the system's queue
  GateBudget::Limits limits;
  CallGate::Policy policy;  // called on the door's thread
  DoorConnection::Timeouts timeouts;
};

struct DoorStats {
  int64_t connections = 0;
  int64_t open_calls = 0;  // those whose clients have gone included
  uint64_t connections_accepted = 0;
  uint64_t connections_refused = 0;  // there were connections_max, all with calls
  uint64_t connections_closed = 0;   // by the door, for what they did or did not do
  uint64_t lost_calls = 0;           // see CallGate
  uint64_t certificate_reloads_failed = 0;
  absl::Time certificate_expires = absl::InfiniteFuture();  // InfiniteFuture: no TLS
};

// gRPC's own listeners let any client take memory and time without bound, and do not tell who does.
// So this listens instead: each connection passes a CallGate, and what it lets through goes to gRPC
// through a socket pair. One thread carries all connections, a few buffers full of each in turn.
// Newcomers are let in a few at a time, and what they need for TLS takes a small part of a turn, so
// that those who are there already do not wait for them.
//
// When there are connections_max, a new one takes the place of the one that has been without a call
// for longest, those that never had any first.
//
// Threads: all methods on any thread, except Open() and the destructor: both on the same one.
// Owns:    sockets, a thread.
class Door {
 public:
  // Opens the sockets; connections wait until Open().
  //
  // Returns: INVALID_ARGUMENT or UNAVAILABLE as Listen(), NOT_FOUND and others as TlsCertificates.
  static absl::StatusOr<std::unique_ptr<Door>> Listen(DoorOptions options);
  // Closes what is still open.
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  // Begins to let in; `hand_over` takes over one end of a socket pair for each connection.
  void Open(std::function<void(int fd)> hand_over);
  // Lets nobody in any more; the sockets are closed when this returns. Connections go on.
  void StopAccepting() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until the last connection has ended, at most `timeout`: gRPC may be done with a call
  // before its client has all of the answer.
  void AwaitEmpty(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads the certificates now. New ones that are not good leave the old ones in use.
  void ReloadCertificates();

  // As given, with the port that was taken where port 0 was asked for.
  const std::vector<std::string>& addresses() const { return addresses_; }
  DoorStats stats() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Listener {
    UniqueFd socket;
    bool tls;
    std::string path;  // of a unix socket
  };
  struct Entry {
    std::unique_ptr<DoorConnection> connection;
    std::string peer;
    bool ready = false;  // is in ready_
  };

  explicit Door(DoorOptions options);
  void Wake() const;
  void Run();
  bool HandleCommands(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  void WaitForEvents(absl::Time now);
  void HandleEvent(uint64_t tag, uint32_t events);
  void MakeReady(Entry* entry);
  void PumpReady(absl::Time now);
  void Tick(absl::Time now);
  void CloseDone(absl::Time now);
  void CloseListeners();

  void SetAccepting(bool accepting);
  void Accept(absl::Time now);
  bool MakeRoom(absl::Time now);
  void LetIn(UniqueFd socket, bool tls, absl::Time now);
  void WatchServer(DoorConnection* connection);
  void Reload(absl::Time now);
  void LogClosed(const Entry& entry, absl::Time now);
  void Publish() ABSL_LOCKS_EXCLUDED(mutex_);

  const DoorOptions options_;
  std::vector<std::string> addresses_;
  UniqueFd poll_;
  UniqueFd wake_;

  // Of the thread, once it runs.
  std::vector<Listener> listeners_;
  std::unique_ptr<TlsCertificates> certificates_;  // null: no TLS
  GateBudget budget_;
  TokenBucket arrivals_;
  DoorConnection::Context context_;
  std::unordered_map<DoorConnection*, Entry> connections_;
  std::vector<Entry*> ready_;
  std::vector<Entry*> paused_;
  std::vector<DoorConnection*> done_;
  bool accepting_ = true;
  bool wants_accept_ = false;
  absl::Time accept_at_ = absl::InfinitePast();
  absl::Time next_tick_ = absl::InfinitePast();
  absl::Time next_reload_ = absl::InfinitePast();
  LogRateLimiter log_{absl::Seconds(1)};
  DoorStats counts_;

  mutable absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_accepting_ ABSL_GUARDED_BY(mutex_) = false;
  bool accepting_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool reload_ ABSL_GUARDED_BY(mutex_) = false;
  DoorStats stats_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace retroinfer::common
