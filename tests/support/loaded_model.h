// A golden model on a backend, ready to run.
#pragma once

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "build_paths.h"
#include "common/log/check.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/transformer.h"
#include "tests/support/backends.h"

namespace retroinfer::test_support {

// Aborts the test program if the model cannot be loaded.
inline std::unique_ptr<Transformer> LoadGoldenModel(Backend& backend, const std::string& name,
                                                    int64_t max_prefill_rows,
                                                    int32_t max_decode_rows) {
  const std::string folder =
      (std::filesystem::path(RETROINFER_SOURCE_DIR) / "tests/golden/models" / name).string();
  auto config = LoadModelConfig(folder);
  RI_CHECK(config.ok());
  auto checkpoint = Checkpoint::Open(folder);
  RI_CHECK(checkpoint.ok());
  auto model =
      Transformer::Load(*backend.device, *backend.ops, *config, *checkpoint,
                        {.max_prefill_rows = max_prefill_rows, .max_decode_rows = max_decode_rows});
  if (!model.ok()) std::cerr << name << ": " << model.status() << '\n';
  RI_CHECK(model.ok());
  return *std::move(model);
}

}  // namespace retroinfer::test_support
