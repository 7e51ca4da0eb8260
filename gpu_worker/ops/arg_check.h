// Checks of the arguments of operations, shared by the backends. Each returns INVALID_ARGUMENT with
// the operation, what it needed and what it got.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

// Where absl was built without std::string_view, StrCat wants its own.
inline absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }

// INVALID_ARGUMENT "op: parts..." unless `condition`. The parts are what absl::StrCat takes; the
// message is built, and memory allocated, only when there is something to say.
template <typename... Parts>
absl::Status CheckArg(bool condition, std::string_view op, const Parts&... parts) {
  if (condition) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(AbslView(op), ": ", parts...));
}

// Requires `view` to be [rows, cols] with a row stride of at least cols, and data unless empty.
inline absl::Status CheckShape(std::string_view op, std::string_view name, const MatrixView& view,
                               int64_t rows, int64_t cols) {
  const bool empty = rows == 0 || cols == 0;
  if (view.rows == rows && view.cols == cols && view.row_stride >= cols &&
      (empty || view.data != nullptr)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(AbslView(op), ": ", AbslView(name), " must be [",
                                                 rows, ", ", cols, "], is [", view.rows, ", ",
                                                 view.cols, "] with row stride ", view.row_stride,
                                                 view.data == nullptr ? " and no data" : ""));
}

// Requires `view` to have elements of `dtype`.
inline absl::Status CheckDType(std::string_view op, std::string_view name, const MatrixView& view,
                               DType dtype) {
  if (view.dtype == dtype) return absl::OkStatus();
  const std::string_view need = DTypeName(dtype), got = DTypeName(view.dtype);
  return absl::InvalidArgumentError(absl::StrCat(AbslView(op), ": ", AbslView(name), " must be ",
                                                 AbslView(need), ", is ", AbslView(got)));
}

// Requires a span of at least `size` elements.
template <typename T>
absl::Status CheckSize(std::string_view op, std::string_view name, const DeviceSpan<T>& span,
                       int64_t size) {
  if (size >= 0 && span.size() >= static_cast<size_t>(size)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(AbslView(op), ": ", AbslView(name), " needs ",
                                                 size, " elements, has ", span.size()));
}

}  // namespace retroinfer
