// What a client is told of its request, from the engine's thread to the output thread.
#pragma once

#include <memory>
#include <optional>
#include <variant>

#include "gpu_worker/engine/generation.h"
#include "gpu_worker/engine/output_processor.h"

namespace retroinfer {

// Of one request. The output thread's, from the first event on.
struct ClientOutput {
  std::shared_ptr<GenerationSink> sink;
  // Turns tokens into text; none where the engine's thread does, for the sake of stop strings.
  std::optional<OutputProcessor> text;
};

struct ClientEvent {
  std::shared_ptr<ClientOutput> client;
  // A token that was drawn, whose text is still to be made; what is told as it is; or the end.
  std::variant<OutputToken, OutputDelta, PrefillProgress, std::unique_ptr<GenerationResult>> what;
};

}  // namespace retroinfer
