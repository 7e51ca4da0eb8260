#include "gpu_worker/model/layer_windows.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/model_limits.h"

namespace retroinfer {
namespace {

absl::Status Unsupported(const common::JsonReader& config, const char* key,
                         const std::string& problem) {
  return absl::UnimplementedError(absl::StrCat(config.place(), ": key \"", key, "\": ", problem));
}

}  // namespace

absl::Status ReadLayerWindows(const common::JsonReader& config, const WindowDefaults& defaults,
                              ModelConfig& model) {
  ASSIGN_OR_RETURN(const int64_t window,
                   config.IntOr("sliding_window", defaults.tokens, 1, kMaxLayerWindow));
  ASSIGN_OR_RETURN(const int64_t pattern,
                   config.IntOr("sliding_window_pattern", defaults.full_each, 1, kMaxLayers));
  std::vector<std::string> types;
  if (config.Has("layer_types")) {
    ASSIGN_OR_RETURN(types, config.StringList("layer_types", kMaxLayers));
    if (types.size() != model.num_layers) {
      return config.Error("layer_types", absl::StrCat("has ", types.size(), " entries for ",
                                                      model.num_layers, " layers"));
    }
  }
  for (uint32_t layer = 0; layer < model.num_layers; ++layer) {
    bool slides = (layer + 1) % pattern != 0;
    if (!types.empty()) {
      const std::string& type = types[layer];
      slides = type == "sliding_attention";
      if (!slides && type != "full_attention") {
        return Unsupported(config, "layer_types",
                           absl::StrCat("\"", type.substr(0, 40),
                                        "\" is not supported; full_attention and "
                                        "sliding_attention are"));
      }
    }
    model.layer_windows.push_back(slides ? static_cast<int32_t>(window) : 0);
  }
  if (std::find(model.layer_windows.begin(), model.layer_windows.end(), 0) ==
      model.layer_windows.end()) {
    return Unsupported(config, "layer_types",
                       "a model without a layer of full attention is not supported");
  }
  const auto slides = [](int32_t of_layer) { return of_layer != 0; };
  if (std::none_of(model.layer_windows.begin(), model.layer_windows.end(), slides)) {
    model.layer_windows.clear();
  }
  return absl::OkStatus();
}

}  // namespace retroinfer
