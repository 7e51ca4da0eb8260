// The name under which the health services of both programs say that the process is alive.
#pragma once

namespace retroinfer::common {

// SERVING from when the sockets are open until the process ends, whatever the store, the model or a
// device does: for those who would start the process again. Whether it can do its work is said by
// the entry "" and by those of the gRPC services.
inline constexpr char kLivenessService[] = "retroinfer.live";

}  // namespace retroinfer::common
