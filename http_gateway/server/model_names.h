// The names by which clients may ask for the model.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace retroinfer::gateway {

// Threads: immutable after construction.
class ModelNames {
 public:
  static constexpr size_t kNameBytesMax = 256;  // of one that "*" takes

  // `names`: beside the one that the worker has; "*": any name, of printable ASCII, is taken.
  explicit ModelNames(std::vector<std::string> names = {});

  // The name that an answer tells: the one that was asked for, or `served`, the worker's, if that
  // is empty.
  //
  // Returns: NOT_FOUND, reason MODEL_NOT_FOUND, for a name that is not among them.
  absl::StatusOr<std::string> NameFor(const std::string& asked, const std::string& served) const;

  // All that can be listed, `served` first.
  std::vector<std::string> List(const std::string& served) const;

 private:
  std::vector<std::string> names_;
  bool takes_any_ = false;
};

}  // namespace retroinfer::gateway
