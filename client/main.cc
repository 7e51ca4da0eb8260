// retroinfer: the command for people.
#include <cstdio>
#include <string_view>

#include "client/commands.h"
#include "client/exit_code.h"
#include "common/build_info/build_info.h"
#include "common/config/option_list.h"
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
    {"bench", BenchCommand,
     "measure throughput and latency, of a running server or of one for the occasion"},
    {"cache", CacheCommand, "keep the KV of texts on disk, and manage what is kept"},
    {"check", CheckCommand, "does a model fit here, and up to which context"},
    {"health", HealthCommand, "is a worker or a store ready, or at least alive; for probes"},
    {"ps", PsCommand, "show what the server is doing"},
};

void PrintHelp(std::FILE* out) {
  std::fprintf(out, "Usage: retroinfer COMMAND [OPTIONS]\n\nCommands:\n");
  for (const Subcommand& subcommand : kSubcommands) {
    std::fprintf(out, "  %-10s%s\n", subcommand.name.data(), subcommand.help);
  }
  std::fprintf(
      out,
      "\n'retroinfer COMMAND --help' lists the options of a command. Each can also be set\n"
      "by an environment variable RETROINFER_OPTION_NAME or in a file named by --config.\n");
}

int Run(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  for (const Subcommand& subcommand : kSubcommands) {
    if (subcommand.name == name) return subcommand.run(argc - 1, argv + 1, Streams());
  }
  if (name == "--version") {
    std::printf("retroinfer %s (%s)\n", common::kBuildVersion, common::kBuildRevision);
    return kExitOk;
  }
  if (name == common::kOptionListFlag) {
    for (const Subcommand& subcommand : kSubcommands) {
      std::printf("%s\t%s\n", subcommand.name.data(), subcommand.help);
    }
    return kExitOk;
  }
  if (name == "--help" || name == "-h" || name == "help") {
    PrintHelp(stdout);
    return kExitOk;
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
