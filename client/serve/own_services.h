// Services that a command starts for itself and stops.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/command/connection.h"
#include "client/command/streams.h"
#include "client/serve/private_folder.h"
#include "client/serve/serve_options.h"
#include "client/serve/supervisor.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::client {

// Parses the options of `retroinfer serve`, of which `command` says in messages whose they are.
// Addresses that environment variables or a config file set are for servers that others reach, and
// are left out. Returns the exit code if the command is done (help, or an error that is printed).
std::optional<int> ParseOwnServices(const std::string& command,
                                    const std::vector<std::string>& arguments,
                                    ServeOptions* options, const Streams& streams);

// A kv_store_service and a gpu_worker that nobody else meets: they listen on sockets in a folder of
// their own, and have metrics endpoints only where the options name them. They and the folder do
// not outlive the process.
//
// Threads: one, which must be the main thread (see ChildProcess).
// Owns:    both processes, their logs and the folder.
class OwnServices {
 public:
  // Makes the folder. Call it before the process has other threads (see PrivateFolder). With
  // `show_log` the services write to stderr, otherwise to files for error messages.
  static absl::StatusOr<OwnServices> Create(ServeOptions options, bool show_log);

  // Starts both and returns when the worker serves, however long that takes. The arguments are
  // those of Supervisor, and so are the errors.
  absl::Status Start(const std::string& command, std::function<int()> should_stop,
                     const Streams& streams);
  // Returns: FAILED_PRECONDITION, with the last lines of its log, if one has ended.
  absl::Status Check() { return supervisor_->Check(); }
  // Ends both; a second signal (see Supervisor) ends them at once.
  void Stop();

  ConnectionOptions connection() const;
  const std::string& folder() const { return folder_.path(); }

 private:
  OwnServices(PrivateFolder folder, ServeOptions options)
      : folder_(std::move(folder)), options_(std::move(options)) {}

  absl::Status OpenLog(ServiceSpec* spec);

  PrivateFolder folder_;
  ServeOptions options_;
  bool show_log_ = false;
  std::vector<common::UniqueFd> logs_;
  std::unique_ptr<Supervisor> supervisor_;  // Start() makes it
};

}  // namespace retroinfer::client
