#include <cstdio>

#include "client/command/command_line.h"
#include "client/command/commands.h"
#include "common/build_info/build_info.h"
#include "gpu_worker/model/model_families.h"

namespace retroinfer::client {

int ModelsCommand(int argc, const char* const* argv, const Streams& streams) {
  common::Settings settings(
      "Lists the families of models that this version serves, as a table in Markdown.",
      common::kBuildVersion);
  if (const auto done = ParseArguments(settings, argc, argv, streams)) return *done;
  std::fputs(ModelFamiliesMarkdown().c_str(), streams.out);
  return kExitOk;
}

}  // namespace retroinfer::client
