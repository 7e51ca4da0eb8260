// absl::Duration in messages.
#pragma once

#include <google/protobuf/duration.pb.h>

#include "absl/time/time.h"

namespace retroinfer {

inline void SetDuration(absl::Duration duration, google::protobuf::Duration* out) {
  const int64_t nanoseconds = absl::ToInt64Nanoseconds(duration);
  out->set_seconds(nanoseconds / 1'000'000'000);
  out->set_nanos(static_cast<int32_t>(nanoseconds % 1'000'000'000));
}

inline absl::Duration GetDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

}  // namespace retroinfer
