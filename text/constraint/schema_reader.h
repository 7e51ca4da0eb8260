// Reads the keywords of JSON Schemas.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/json/json_document.h"
#include "text/constraint/limits.h"
#include "text/constraint/schema_node.h"

namespace retroinfer::constraint {

// Threads: one at a time.
class SchemaReader {
 public:
  // `root`: the document, which references point into.
  //
  // REQUIRES: the document and `limits` outlive the reader.
  SchemaReader(common::JsonValue root, const Limits& limits) : root_(root), limits_(limits) {}

  // What all schemas of `set` demand together, and what those demand that they refer to.
  //
  // Returns: INVALID_ARGUMENT, reason INVALID_CONSTRAINT, with the pointer of the place: for a
  //          keyword that is unknown, that is not supported, or that has a wrong value; for a
  //          reference that leads nowhere, outside, or to itself; and past
  //          limits.schema_visits_max schemas, counted over the reader's life.
  absl::StatusOr<SchemaNode> Read(const SchemaSet& set);
  // Adds one more schema to a node.
  absl::Status Add(const SchemaRef& ref, SchemaNode& node);

  // Counts work of the caller as schemas that are read.
  absl::Status Charge(size_t visits, std::string_view pointer);

  SchemaRef root() const { return {root_, "#"}; }

 private:
  // The members of one schema that belong together.
  struct Local {
    ArrayDemands array;
    ObjectDemands object;
  };

  absl::Status AddObject(const SchemaRef& ref, SchemaNode& node);
  absl::Status AddMember(const SchemaRef& ref, const common::JsonMember& member, Local& local,
                         SchemaNode& node);
  absl::Status AddGeneral(const SchemaRef& at, std::string_view key, SchemaNode& node, bool& known);
  absl::Status AddNumber(const SchemaRef& at, std::string_view key, SchemaNode& node, bool& known);
  absl::Status AddString(const SchemaRef& at, std::string_view key, SchemaNode& node, bool& known);
  absl::Status AddArray(const SchemaRef& at, std::string_view key, Local& local, bool& known);
  absl::Status AddObjectMember(const SchemaRef& at, std::string_view key, Local& local,
                               bool& known);
  absl::Status AddTypes(const SchemaRef& at, bool is_nullable, SchemaNode& node);
  absl::StatusOr<SchemaRef> Resolve(const SchemaRef& at) const;

  const common::JsonValue root_;
  const Limits& limits_;
  size_t visits_ = 0;
  std::vector<std::string> open_;  // pointers of the schemas that are being added
};

}  // namespace retroinfer::constraint
