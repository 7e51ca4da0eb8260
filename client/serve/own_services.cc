#include "client/serve/own_services.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/command/command_line.h"
#include "common/build_info/build_info.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::client {

std::optional<int> ParseOwnServices(const std::string& command,
                                    const std::vector<std::string>& arguments,
                                    ServeOptions* options, const Streams& streams) {
  for (const char* flag : {"--listen", "--socket-dir"}) {
    if (!common::IsGiven(arguments, flag)) continue;
    return Fail(streams, command,
                absl::StrCat(flag,
                             " has no place here: these services listen on sockets in a "
                             "folder that is made for them"),
                kExitUsage);
  }
  std::vector<const char*> argv = {command.c_str()};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  common::Settings settings("Options of the services that the command starts for itself.",
                            common::kBuildVersion);
  AddServeOptions(&settings, options);
  if (const auto done =
          ParseArguments(settings, static_cast<int>(argv.size()), argv.data(), streams)) {
    return done;
  }
  for (const char* flag : {"--metrics-address", "--store-metrics-address"}) {
    if (!common::IsGiven(arguments, flag)) options->passed[flag].clear();
  }
  options->is_private = true;
  if (const absl::Status status = CheckServeOptions(options); !status.ok()) {
    return Fail(streams, command, std::string(status.message()), kExitUsage);
  }
  return std::nullopt;
}

absl::StatusOr<OwnServices> OwnServices::Create(ServeOptions options, bool show_log) {
  ASSIGN_OR_RETURN(PrivateFolder folder, PrivateFolder::Create("retroinfer-services"));
  OwnServices services(std::move(folder), std::move(options));
  services.options_.socket_dir = services.folder();
  services.options_.is_private = true;
  services.show_log_ = show_log;
  return services;
}

absl::Status OwnServices::OpenLog(ServiceSpec* spec) {
  spec->log_path = absl::StrCat(folder(), "/", spec->name, ".log");
  common::UniqueFd& log = logs_.emplace_back(
      ::open(spec->log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return common::ErrnoStatus(errno, absl::StrCat("making ", spec->log_path));
  spec->output = log.get();
  return absl::OkStatus();
}

absl::Status OwnServices::Start(const std::string& command, std::function<int()> should_stop,
                                const Streams& streams) {
  std::vector<ServiceSpec> specs = ServiceSpecs(options_);
  for (ServiceSpec& spec : specs) {
    if (show_log_) {
      spec.output = STDERR_FILENO;
    } else {
      RETURN_IF_ERROR(OpenLog(&spec));
    }
  }
  supervisor_ = std::make_unique<Supervisor>(
      std::move(specs), std::move(should_stop),
      [command, err = streams.err](Supervisor::Severity, const std::string& message) {
        std::fprintf(err, "retroinfer %s: %s\n", command.c_str(), message.c_str());
      });
  return supervisor_->Start();
}

void OwnServices::Stop() {
  if (supervisor_ != nullptr) supervisor_->Stop();
}

ConnectionOptions OwnServices::connection() const {
  return {.address = WorkerAddress(options_), .api_key_file = options_.Passed("--api-key-file")};
}

}  // namespace retroinfer::client
