// Which tokens of a text a draft model sees.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace retroinfer {

// A prompt and what was generated behind it.
struct DraftedText {
  uint64_t id = 0;  // of the sequence; not 0
  std::span<const int32_t> prompt;
  std::span<const int32_t> answer;

  int64_t size() const { return std::ssize(prompt) + std::ssize(answer); }
  int32_t operator[](int64_t position) const {
    const auto at = static_cast<size_t>(position);
    return at < prompt.size() ? prompt[at] : answer[at - prompt.size()];
  }
};

// The first tokens of a text and the newest, at most `capacity` together: the whole text while it
// is short.
class DraftWindow {
 public:
  // Of the text's beginning, which models lean on.
  static constexpr int64_t kFirst = 4;

  DraftWindow() = default;
  // The window of a text of `size` tokens that is going to grow. REQUIRES: capacity >= 4 * kFirst.
  DraftWindow(int64_t capacity, int64_t size) : capacity_(capacity) {
    if (size > capacity / 4 * 3) Move(size);
  }

  // Tokens of the window of a text of `size` tokens.
  int64_t LengthOf(int64_t size) const { return size - skipped_; }
  // Moves the window if the text and `ahead` more tokens do not fit. Returns whether it has moved.
  bool MakeRoom(int64_t size, int64_t ahead) {
    if (LengthOf(size) + ahead <= capacity_) return false;
    Move(size);
    return true;
  }
  int64_t PositionInText(int64_t position) const {
    return position < kFirst ? position : position + skipped_;
  }

 private:
  // Half of the capacity is left, so that the window moves seldom.
  void Move(int64_t size) { skipped_ = std::max<int64_t>(0, size - capacity_ / 2); }

  int64_t capacity_ = 0;
  int64_t skipped_ = 0;  // tokens of the text behind the first ones
};

}  // namespace retroinfer
