// What can be wrong with a model on the disk, found before anything is started or allocated for it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gpu_worker/model/model_config.h"
#include "text/tokenizer/tokenizer.h"

namespace retroinfer::client {

struct ModelFiles {
  ModelConfig config;
  size_t weight_bytes_cpu = 0;  // of the weights in the memory of a worker, about
  size_t weight_bytes_gpu = 0;
  bool has_weights = true;    // false: the sizes above follow from `config`
  std::string weights_dtype;  // as GetModelInfo has them
  std::string weight_scales;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: of a config.json alone
  std::string chat_template;                   // where it is from: a file's name, or "none"
  std::string chat_template_problem;           // why it cannot be run; empty: nothing known
};

// The worker's options of these names.
struct ModelFileOptions {
  std::string chat_template_file = {};  // takes the place of the folder's own; empty: it does not
  std::string weights_dtype = "auto";
  std::string kv_dtype = "auto";
  std::string rope_scaling = {};
  int num_ranks = 1;  // sizes of weights are those of the largest rank's part
  // False: a folder without weights, or a config.json, will do. What is not there is not checked;
  // but where something is in the place of weights, that is refused.
  bool needs_weights = true;
};

// Reads all that the worker will read of the model `path` (StoredModel) but the weights themselves,
// of which it reads the headers; where keys are to be stored in eight bits, and have biases, the
// weights that tell whether these are too large.
//
// Returns: NOT_FOUND, INVALID_ARGUMENT or UNIMPLEMENTED for a folder or a template file that the
//          worker would refuse. It does not refuse a folder for its own template.
absl::StatusOr<ModelFiles> ReadModelFiles(const std::string& path,
                                          const ModelFileOptions& options = {});

// What follows from the shape `name` (model_shapes.h) alone: a model without weights, tokenizer or
// template, as a worker makes with --load-format dummy.
//
// Returns: NOT_FOUND, naming the shapes there are; INVALID_ARGUMENT for options that do not go
//          with the shape.
absl::StatusOr<ModelFiles> ReadModelShape(const std::string& name,
                                          const ModelFileOptions& options = {});

// Reads the draft model `path` (--draft-model) of a server of these files, and compares the tokens,
// where both have some.
//
// Returns: as ReadModelFiles; INVALID_ARGUMENT for a model with other tokens.
absl::StatusOr<ModelFiles> ReadDraftModelFiles(const std::string& path, const ModelFiles& served);

}  // namespace retroinfer::client
