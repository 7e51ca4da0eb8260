// What is in a model folder where weights should be.
#pragma once

#include <string>
#include <vector>

namespace retroinfer {

// Looks for what people have in the place of *.safetensors files: an unfinished download, a link
// whose file is gone, weights of another format. At most 4096 entries of a folder are looked at.
//
// Returns what there is and what to do, as the end of a sentence: "; model.safetensors.incomplete
// is ..."; empty if nothing tells.
std::string InsteadOfWeights(const std::string& folder);

// Says of weight files that an index names that they are missing: how many of `num_files`, and the
// first of them.
//
// REQUIRES: !missing.empty().
std::string DescribeMissingFiles(const std::string& folder, const std::vector<std::string>& missing,
                                 size_t num_files);

}  // namespace retroinfer
