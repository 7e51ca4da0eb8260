// The worker of most tests of the engine: a small model, and an index behind 2,048 tokens, so that
// short prompts have one.
#pragma once

#include <filesystem>

#include "build_paths.h"
#include "tests/support/in_process_worker.h"

namespace retroinfer::test_support {

inline InProcessWorkerOptions SmallWorker(int64_t max_model_len = 12288) {
  InProcessWorkerOptions options;
  options.model_folder =
      std::filesystem::path(RETROINFER_SOURCE_DIR) / "tests/golden/models/llama-d64-untied-bf16";
  options.context_length = 131072;
  options.max_model_len = max_model_len;
  options.wave_index.dense_below = 2048;
  return options;
}

}  // namespace retroinfer::test_support
