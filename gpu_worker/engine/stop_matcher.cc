// Each pattern keeps, as in Knuth-Morris-Pratt, the longest of its prefixes that the scanned text
// ends with. Invariant between bytes: `held_` is the suffix of the scanned text whose length is the
// maximum of those prefixes. So a stop string that ends at the next byte begins inside `held_` or
// at that byte, and nothing of it has been given out.
#include "gpu_worker/engine/stop_matcher.h"

#include <algorithm>

namespace retroinfer {
namespace {

std::vector<size_t> Borders(std::string_view text) {
  std::vector<size_t> border(text.size(), 0);
  for (size_t i = 1, length = 0; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = border[length - 1];
    if (text[i] == text[length]) ++length;
    border[i] = length;
  }
  return border;
}

}  // namespace

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    patterns_.push_back({stop, Borders(stop), 0});
    longest = std::max(longest, stop.size());
  }
  held_.reserve(longest + 1);
}

int StopMatcher::Scan(std::string_view text, bool may_stop, std::string* out) {
  if (patterns_.empty()) {
    out->append(text);
    return -1;
  }
  for (const char byte : text) {
    held_.push_back(byte);
    int stopped = -1;
    size_t longest = 0;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& pattern = patterns_[i];
      size_t& matched = pattern.matched;
      while (matched > 0 && pattern.text[matched] != byte) matched = pattern.border[matched - 1];
      if (pattern.text[matched] == byte) ++matched;
      if (matched == pattern.text.size()) {
        if (may_stop && (stopped < 0 || pattern.text.size() > patterns_[stopped].text.size())) {
          stopped = static_cast<int>(i);
        }
        matched = pattern.border[matched - 1];
      }
      longest = std::max(longest, matched);
    }
    if (stopped >= 0) {
      out->append(held_, 0, held_.size() - patterns_[stopped].text.size());
      held_.clear();
      return stopped;
    }
    const size_t released = held_.size() - longest;
    out->append(held_, 0, released);
    held_.erase(0, released);
  }
  return -1;
}

void StopMatcher::Flush(std::string* out) {
  out->append(held_);
  held_.clear();
  for (Pattern& pattern : patterns_) pattern.matched = 0;
}

}  // namespace retroinfer
