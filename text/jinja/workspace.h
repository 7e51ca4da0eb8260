// Makes values, and counts what a rendering takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "text/jinja/value.h"

namespace retroinfer::jinja {

// A template is a program of a stranger: none of these may be without end.
struct Limits {
  // Parts of the template evaluated, plus one for each 256 bytes read or written.
  uint64_t steps_max = uint64_t{1} << 25;
  size_t memory_bytes_max = size_t{256} << 20;  // of values at the same time
  size_t output_bytes_max = size_t{64} << 20;
  int call_depth_max = 400;  // of expressions, statements and macros within each other
};

// Threads: one.
class Workspace {
 public:
  static constexpr int kValueDepthMax = 100;

  Workspace(const Limits& limits, absl::Time now, absl::TimeZone time_zone)
      : limits_(limits),
        now_(now),
        time_zone_(time_zone),
        meter_(std::make_shared<Meter>(limits.memory_bytes_max)) {}

  // Each returns RESOURCE_EXHAUSTED when a limit is reached.
  absl::Status Spend(uint64_t steps);
  // Before work on so many bytes: steps, and room for a result of this size.
  absl::Status Expect(size_t bytes);
  // Whether there is room for so many bytes more; costs no steps.
  absl::Status CheckRoom(size_t bytes) const;

  absl::StatusOr<Value> String(Text text);
  absl::StatusOr<Value> String(std::string_view bytes) { return String(Text(bytes, false)); }
  absl::StatusOr<Value> Items(Sequence::Kind kind, Values items);
  absl::StatusOr<Value> List(Values items) {
    return Items(Sequence::Kind::kList, std::move(items));
  }
  // A later entry takes the place of an earlier one with an equal key.
  //
  // Returns: INVALID_ARGUMENT if a key is of a type that cannot be one.
  absl::StatusOr<Value> MakeDict(std::vector<Dict::Entry> entries);

  const Limits& limits() const { return limits_; }
  absl::Time now() const { return now_; }
  absl::TimeZone time_zone() const { return time_zone_; }

 private:
  const Limits limits_;
  const absl::Time now_;
  const absl::TimeZone time_zone_;
  const std::shared_ptr<Meter> meter_;
  uint64_t steps_ = 0;
};

}  // namespace retroinfer::jinja
