#include "gpu_worker/model/stored_groups.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

template <typename T>
std::vector<T> Integers(const HostTensor& tensor) {
  std::vector<T> values(tensor.stored.size() / sizeof(T));
  std::memcpy(values.data(), tensor.stored.data(), values.size() * sizeof(T));
  return values;
}

absl::Status TensorError(const Checkpoint& checkpoint, const std::string& name,
                         const std::string& problem) {
  return absl::InvalidArgumentError(
      absl::StrCat(checkpoint.folder(), ": tensor \"", name, "\" ", problem));
}

// Checks that each group has the size that it must have.
absl::Status CheckSizes(const std::vector<int32_t>& groups, int64_t group_cols,
                        const std::string& name, const Checkpoint& checkpoint) {
  const int64_t cols = std::ssize(groups);
  const int64_t num_groups = (cols + group_cols - 1) / group_cols;
  std::vector<int64_t> sizes(static_cast<size_t>(num_groups));
  for (const int32_t group : groups) {
    if (group < 0 || group >= num_groups) {
      return TensorError(
          checkpoint, name,
          absl::StrCat("holds group ", group, "; there are ", num_groups, " of ", group_cols));
    }
    ++sizes[static_cast<size_t>(group)];
  }
  for (int64_t group = 0; group < num_groups; ++group) {
    const int64_t wanted = std::min(group_cols, cols - group * group_cols);
    const int64_t size = sizes[static_cast<size_t>(group)];
    if (size == wanted) continue;
    return TensorError(
        checkpoint, name,
        absl::StrCat("gives group ", group, " ", size, " input features; it needs ", wanted));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> GroupsOfColumns(const StoredForm& form,
                                                     const CodedTensors& names,
                                                     const Checkpoint& checkpoint, int64_t cols) {
  const int64_t group_cols = form.scale_cols == 0 ? cols : form.scale_cols;
  const auto found = checkpoint.tensors().find(names.groups);
  if (names.groups.empty() || found == checkpoint.tensors().end()) {
    std::vector<int32_t> groups(static_cast<size_t>(cols));
    for (size_t col = 0; col < groups.size(); ++col) {
      groups[col] = static_cast<int32_t>(static_cast<int64_t>(col) / group_cols);
    }
    return groups;
  }
  ASSIGN_OR_RETURN(const HostTensor tensor, checkpoint.Find(names.groups, {cols}));
  if (tensor.type != WeightType::kI32) {
    return TensorError(
        checkpoint, names.groups,
        absl::StrCat("is ", std::string(WeightTypeName(tensor.type)), "; groups are I32"));
  }
  std::vector<int32_t> groups = Integers<int32_t>(tensor);
  RETURN_IF_ERROR(CheckSizes(groups, group_cols, names.groups, checkpoint));
  return groups;
}

absl::StatusOr<std::vector<int32_t>> ColumnsByGroup(const StoredForm& form,
                                                    const CodedTensors& names,
                                                    const Checkpoint& checkpoint, int64_t cols) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> groups,
                   GroupsOfColumns(form, names, checkpoint, cols));
  if (std::is_sorted(groups.begin(), groups.end())) return std::vector<int32_t>();
  std::vector<int32_t> columns(groups.size());
  std::iota(columns.begin(), columns.end(), 0);
  std::stable_sort(columns.begin(), columns.end(), [&groups](int32_t a, int32_t b) {
    return groups[static_cast<size_t>(a)] < groups[static_cast<size_t>(b)];
  });
  return columns;
}

absl::Status CheckStoredShape(const StoredForm& form, const CodedTensors& names,
                              const Checkpoint& checkpoint, const std::vector<int64_t>& shape) {
  if (form.shape_end.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const HostTensor tensor, checkpoint.Find(names.shape, {2}));
  if (tensor.type != WeightType::kI64) {
    return TensorError(
        checkpoint, names.shape,
        absl::StrCat("is ", std::string(WeightTypeName(tensor.type)), "; a shape is I64"));
  }
  const std::vector<int64_t> stored = Integers<int64_t>(tensor);
  if (stored == shape) return absl::OkStatus();
  return TensorError(checkpoint, names.shape,
                     absl::StrCat("says [", stored[0], ", ", stored[1], "]; config.json asks for [",
                                  shape[0], ", ", shape[1], "]"));
}

}  // namespace retroinfer
