// Whether a value can be of two schemas.
#pragma once

#include "absl/status/statusor.h"
#include "text/constraint/schema_node.h"
#include "text/constraint/schema_reader.h"

namespace retroinfer::constraint {

// Whether it is plain that no value fulfils both: by type, by listed values, by the bounds of
// numbers, or, of objects, by a property that both require. False where it is not plain.
//
// Returns: the errors of SchemaReader::Read, with which the properties are read.
absl::StatusOr<bool> AreDisjoint(const SchemaNode& a, const SchemaNode& b, SchemaReader& reader);

}  // namespace retroinfer::constraint
