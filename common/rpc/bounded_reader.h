// What a client streams, message by message, each looked at before it is parsed.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/sync_stream.h>

#include "absl/status/statusor.h"
#include "common/rpc/message_codec.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {

// Threads: that of the handler.
template <typename Request>
class BoundedReader {
 public:
  // REQUIRES: `reader` outlives this object.
  explicit BoundedReader(grpc::ServerReader<grpc::ByteBuffer>* reader) : reader_(*reader) {}

  void SendInitialMetadata() { reader_.SendInitialMetadata(); }

  // Waits for the next message and puts it into `*request`; false if there is none any more.
  //
  // Returns: what ParseRequest() returns of a message that is none; nothing is to be read after it.
  absl::StatusOr<bool> Read(Request* request) {
    grpc::ByteBuffer bytes;
    if (!reader_.Read(&bytes)) return false;
    request->Clear();
    RETURN_IF_ERROR(ParseRequest(bytes, request));
    return true;
  }

 private:
  grpc::ServerReader<grpc::ByteBuffer>& reader_;
};

}  // namespace retroinfer::common
