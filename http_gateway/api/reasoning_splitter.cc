#include "http_gateway/api/reasoning_splitter.h"

#include <utility>

#include "http_gateway/api/tag_search.h"

namespace retroinfer::gateway {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

}  // namespace

ReasoningSplitter::Parts ReasoningSplitter::Append(std::string_view text) {
  Parts parts;
  if (state_ == State::kContent) {
    parts.content = text;
    return parts;
  }
  held_.append(text);
  Step(false, &parts);
  return parts;
}

ReasoningSplitter::Parts ReasoningSplitter::Finish() {
  Parts parts;
  Step(true, &parts);
  return parts;
}

void ReasoningSplitter::Step(bool ended, Parts* parts) {
  if (state_ == State::kBegin) {
    const size_t first = held_.find_first_not_of(kWhiteSpace);
    const std::string_view rest =
        first == std::string::npos ? std::string_view() : std::string_view(held_).substr(first);
    if (!ended && rest.size() < kOpen.size() && kOpen.substr(0, rest.size()) == rest) return;
    if (rest.substr(0, kOpen.size()) == kOpen) {
      held_ = std::string(rest.substr(kOpen.size()));
      state_ = State::kThinking;
      at_start_ = true;
    } else {
      state_ = State::kContent;
    }
  }
  if (state_ == State::kThinking) {
    if (at_start_) {
      held_.erase(0, held_.find_first_not_of('\n'));
      if (held_.empty()) return;
      at_start_ = false;
    }
    const size_t close = held_.find(kClose);
    if (close != std::string::npos) {
      parts->reasoning = WithoutTrailingSpace(std::string_view(held_).substr(0, close));
      held_.erase(0, close + kClose.size());
      state_ = State::kAfter;
    } else {
      const size_t partial = ended ? 0 : PartialTagBytes(held_, kClose);
      const std::string_view free = std::string_view(held_).substr(0, held_.size() - partial);
      const size_t size = ended ? free.size() : WithoutTrailingSpace(free).size();
      parts->reasoning = held_.substr(0, size);
      held_.erase(0, size);
      return;
    }
  }
  if (state_ == State::kAfter) {
    held_.erase(0, held_.find_first_not_of('\n'));
    if (held_.empty()) return;
    state_ = State::kContent;
  }
  parts->content = std::exchange(held_, "");
}

}  // namespace retroinfer::gateway
