// The files of tests/golden/gguf (tools/gguf/make_golden.py).
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "build_paths.h"
#include "gpu_worker/model/gguf/gguf_files.h"

namespace retroinfer::test_support {

inline std::string GoldenGgufPath(const std::string& file) {
  return std::string(RETROINFER_SOURCE_DIR) + "/tests/golden/gguf/" + file;
}

// A model's file, or the first of its files.
inline std::string GoldenGgufModel(const std::string& name) {
  return GoldenGgufPath(name + (name == "qwen2" ? "-00001-of-00002.gguf" : ".gguf"));
}

// What must be read from it.
inline nlohmann::json GoldenGgufExpected(const std::string& name) {
  return nlohmann::json::parse(std::ifstream(GoldenGgufPath(name + ".json")));
}

}  // namespace retroinfer::test_support
