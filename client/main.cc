// retroinfer: the command for people.
#include <cstdio>
#include <string>
#include <string_view>

#include "client/command/command_line.h"
#include "client/command/commands.h"
#include "client/command/exit_code.h"
#include "common/build_info/build_info.h"
#include "common/config/option_list.h"
#include "common/log/library_log.h"
#include "common/process/standard_streams.h"

namespace retroinfer::client {
namespace {

struct Subcommand {
  std::string_view name;
  int (*run)(int, const char* const*, const Streams&);
  const char* help;
};
constexpr Subcommand kSubcommands[] = {
    {"serve", ServeCommand, "start the server on this machine and keep it running"},
    {"generate", GenerateCommand, "generate text from a prompt"},
    {"chat", ChatCommand, "talk with the model"},
    {"bench", BenchCommand, "measure throughput and latency of a server"},
    {"score", ScoreCommand, "perplexity of a text, by attention policy and context"},
    {"tune", TuneCommand, "find the retrieval ratio that your text needs"},
    {"cache", CacheCommand, "keep the KV of texts on disk, and manage what is kept"},
    {"check", CheckCommand, "does a model fit here, and up to which context"},
    {"models", ModelsCommand, "which families of models are served"},
    {"health", HealthCommand, "is a worker or a store ready, or at least alive; for probes"},
    {"ps", PsCommand, "show what the server is doing"},
};

void PrintHelp(std::FILE* out) {
  std::fprintf(out, "Usage: retroinfer COMMAND [OPTIONS]\n\nCommands:\n");
  for (const Subcommand& subcommand : kSubcommands) {
    std::fprintf(out, "  %-10s%s\n", subcommand.name.data(), subcommand.help);
  }
  std::fprintf(out,
               "\n'retroinfer COMMAND --help' lists the options of a command. Each can also be\n"
               "set by an environment variable RETROINFER_OPTION_NAME, or in a file (--config).\n");
}

// A result that did not arrive is a failure, whatever the command thought.
int Finish(const Subcommand& subcommand, int exit_code) {
  const absl::Status written = FlushResults(stdout);
  if (written.ok() || exit_code != kExitOk) return exit_code;
  return Fail({}, std::string(subcommand.name), std::string(written.message()), kExitFailed);
}

int Run(int argc, char** argv) {
  common::SilenceLibraries();  // the server says what is wrong with a request
  const std::string_view name = argc > 1 ? argv[1] : "";
  for (const Subcommand& subcommand : kSubcommands) {
    if (subcommand.name == name) return Finish(subcommand, subcommand.run(argc - 1, argv + 1, {}));
  }
  if (name == "--version") {
    std::printf("retroinfer %s (%s)\n", common::kBuildVersion, common::kBuildRevision);
    return FlushResults(stdout).ok() ? kExitOk : kExitFailed;
  }
  if (name == common::kOptionListFlag) {
    for (const Subcommand& subcommand : kSubcommands) {
      std::printf("%s\t%s\n", subcommand.name.data(), subcommand.help);
    }
    return kExitOk;
  }
  if (name == "--help" || name == "-h" || name == "help") {
    PrintHelp(stdout);
    return FlushResults(stdout).ok() ? kExitOk : kExitFailed;
  }
  if (!name.empty()) {
    std::fprintf(stderr, "retroinfer: unknown command '%s'\n\n", argv[1]);
  }
  PrintHelp(stderr);
  return kExitUsage;
}

}  // namespace
}  // namespace retroinfer::client

int main(int argc, char** argv) {
  retroinfer::common::OpenStandardStreams();
  return retroinfer::client::Run(argc, argv);
}
