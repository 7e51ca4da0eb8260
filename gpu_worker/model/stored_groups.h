// Which columns of a matrix of codes share a scale, where a checkpoint says so for each column:
// GPTQ with act order ("desc_act"), which quantizes input features in the order of their
// importance.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/stored_form.h"

namespace retroinfer {

// The group of each of `cols` columns of the matrix with these tensors: as the checkpoint says, or
// those side by side.
//
// Returns: INVALID_ARGUMENT, with the tensor, if it has another shape or type, or if groups are not
//          all of the form's size, the last one of what is left.
absl::StatusOr<std::vector<int32_t>> GroupsOfColumns(const StoredForm& form,
                                                     const CodedTensors& names,
                                                     const Checkpoint& checkpoint, int64_t cols);

// The columns in an order in which groups are side by side, those of a group as they were; empty:
// that is the order that they have. Returns: as GroupsOfColumns.
absl::StatusOr<std::vector<int32_t>> ColumnsByGroup(const StoredForm& form,
                                                    const CodedTensors& names,
                                                    const Checkpoint& checkpoint, int64_t cols);

// Checks that the tensor of a matrix' rows and columns, if the form has one, says `shape`.
absl::Status CheckStoredShape(const StoredForm& form, const CodedTensors& names,
                              const Checkpoint& checkpoint, const std::vector<int64_t>& shape);

}  // namespace retroinfer
