// Events of a stream (text/event-stream), for tests.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "http_gateway/json/strict_json.h"

namespace retroinfer::test_support {

struct StreamEvent {
  std::string name;  // empty: it has none
  gateway::Json data;
};

// Comments are left out. Data that is no JSON becomes a text.
inline std::vector<StreamEvent> EventsOf(const std::string& body) {
  std::vector<StreamEvent> events;
  for (const absl::string_view block : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
    StreamEvent event;
    bool has_data = false;
    for (const absl::string_view line : absl::StrSplit(block, '\n')) {
      if (line.substr(0, 7) == "event: ") event.name = std::string(line.substr(7));
      if (line.substr(0, 6) != "data: ") continue;
      const std::string data(line.substr(6));
      event.data = gateway::Json::accept(data) ? gateway::Json::parse(data) : gateway::Json(data);
      has_data = true;
    }
    if (has_data) events.push_back(std::move(event));
  }
  return events;
}

// The names, each with a space behind it; "+" counts further events of the name before.
inline std::string NamesOf(const std::vector<StreamEvent>& events) {
  std::string names;
  for (size_t i = 0; i < events.size(); ++i) {
    if (i > 0 && events[i].name == events[i - 1].name) continue;
    const bool is_more = i + 1 < events.size() && events[i + 1].name == events[i].name;
    absl::StrAppend(&names, events[i].name, is_more ? "+ " : " ");
  }
  return names;
}

}  // namespace retroinfer::test_support
