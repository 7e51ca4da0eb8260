// Propagates absl::Status out of a function that returns Status or StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the calling function if `expression` is an error.
#define RETURN_IF_ERROR(expression)                                 \
  do {                                                              \
    if (::absl::Status ri_status = (expression); !ri_status.ok()) { \
      return ri_status;                                             \
    }                                                               \
  } while (false)

// Assigns the value of `expression` (a StatusOr) to `lhs`, or returns its error.
// `lhs` may declare a variable: ASSIGN_OR_RETURN(auto fd, OpenFile(path));
#define ASSIGN_OR_RETURN(lhs, expression) \
  RI_ASSIGN_OR_RETURN_IMPL_(RI_CONCAT_(ri_statusor_, __LINE__), lhs, expression)

#define RI_CONCAT_INNER_(a, b) a##b
#define RI_CONCAT_(a, b) RI_CONCAT_INNER_(a, b)
#define RI_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expression) \
  auto statusor = (expression);                              \
  if (!statusor.ok()) return std::move(statusor).status();   \
  lhs = *std::move(statusor)
