// Finds the frames in a stream of bytes that passes by.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "common/door/http2_frame.h"

namespace retroinfer::common {

// Threads: one at a time.
class FrameScanner {
 public:
  // Appends all of `bytes` to `out`; calls `on_frame(header)` for each frame that begins in them
  // and `at_boundary()` wherever a frame of somebody else may stand in `out`.
  template <typename OnFrame, typename AtBoundary>
  void Pass(std::string_view bytes, std::string* out, OnFrame on_frame, AtBoundary at_boundary) {
    while (!bytes.empty()) {
      if (left_ > 0) {
        const std::string_view payload = bytes.substr(0, left_);
        out->append(payload);
        left_ -= payload.size();
        bytes.remove_prefix(payload.size());
        continue;
      }
      if (IsAtBoundary()) at_boundary();
      const size_t wanted = std::min(kFrameHeaderBytes - header_.size(), bytes.size());
      header_ += bytes.substr(0, wanted);
      bytes.remove_prefix(wanted);
      if (header_.size() < kFrameHeaderBytes) return;
      const FrameHeader frame = ParseFrameHeader(header_);
      out->append(header_);
      header_.clear();
      left_ = frame.length;
      began_ = true;
      if (frame.type == FrameType::kHeaders || frame.type == FrameType::kContinuation) {
        in_header_block_ = !frame.Has(frame_flag::kEndHeaders);
      }
      on_frame(frame);
    }
  }

  // Whether what has passed ends with a whole frame and header block. Not before the first frame,
  // which has to be the peer's own.
  bool IsAtBoundary() const { return began_ && left_ == 0 && header_.empty() && !in_header_block_; }
  bool began() const { return began_; }

 private:
  std::string header_;  // a part of one
  size_t left_ = 0;     // of a payload
  bool began_ = false;
  bool in_header_block_ = false;
};

}  // namespace retroinfer::common
