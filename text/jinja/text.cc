#include "text/jinja/text.h"

#include <algorithm>

namespace retroinfer::jinja {

void Text::Append(std::string_view bytes, bool of_template) {
  if (bytes.empty()) return;
  bytes_.append(bytes);
  if (!runs_.empty() && runs_.back().of_template == of_template) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), of_template});
  }
}

void Text::AppendPart(const Text& text, size_t begin, size_t end) {
  auto run = std::upper_bound(text.runs_.begin(), text.runs_.end(), begin,
                              [](size_t offset, const Run& item) { return offset < item.end; });
  const std::string_view bytes = text.bytes_;
  while (begin < end) {
    const size_t stop = std::min(end, run->end);
    Append(bytes.substr(begin, stop - begin), run->of_template);
    begin = stop;
    ++run;
  }
}

Text Text::Part(size_t begin, size_t end) const {
  Text part;
  part.AppendPart(*this, begin, end);
  return part;
}

}  // namespace retroinfer::jinja
