// A template that can be run.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "text/jinja/syntax.h"
#include "text/jinja/workspace.h"

namespace retroinfer::jinja {

// A Jinja template as transformers runs chat templates: in a sandbox where nothing can be changed,
// with trim_blocks, lstrip_blocks and loop controls, its tojson, raise_exception and strftime_now.
//
// Threads: immutable; any number of threads may run it at once.
class Program {
 public:
  using Variables = std::vector<std::pair<std::string, Value>>;

  // Returns: INVALID_ARGUMENT, UNIMPLEMENTED or RESOURCE_EXHAUSTED with the line, for what is no
  //          template, uses tags that this interpreter lacks, or is nested too deeply.
  static absl::StatusOr<Program> Parse(std::string_view source);

  // Returns what the template writes.
  //
  // REQUIRES: the values of `variables` were made in `workspace`, or by Value::OfText().
  // Returns:  INVALID_ARGUMENT with the line, if the template does not go with the variables or
  //           raises an exception (IsRaisedError()); UNIMPLEMENTED where it comes to something that
  //           this interpreter lacks; RESOURCE_EXHAUSTED at a limit of `workspace`.
  absl::StatusOr<Text> Render(Workspace& workspace, const Variables& variables) const;

  // The filters and tests that the template names and this interpreter lacks: "line 3: the filter
  // 'x'". It can be run as long as it does not come to them.
  const std::vector<std::string>& gaps() const { return gaps_; }

 private:
  Statements statements_;
  std::vector<std::string> gaps_;
};

}  // namespace retroinfer::jinja
