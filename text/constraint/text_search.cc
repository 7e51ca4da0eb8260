// The automaton of Knuth, Morris and Pratt (1977) over characters: state i has read the first i
// characters of the tag, and no longer beginning of it.
#include "text/constraint/text_search.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "common/log/check.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer::constraint {
namespace {

std::u32string CharactersIn(std::string_view text) {
  std::u32string characters;
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    RI_CHECK(step.kind == Utf8Step::Kind::kCharacter);
    characters.push_back(step.code);
    text.remove_prefix(step.length);
  }
  return characters;
}

// The states before the whole tag was read; edges that complete the tag lead to state tag.size().
std::vector<GraphState> SearchStates(const std::u32string& tag) {
  std::vector<GraphState> states(tag.size());
  // Where each character leads from a state; those that are not named lead to state 0.
  using Steps = absl::btree_map<char32_t, uint32_t>;
  Steps behind;  // of the state behind the longest proper suffix that begins the tag
  for (uint32_t i = 0; i < tag.size(); ++i) {
    Steps steps = behind;
    const uint32_t suffix_step = behind.contains(tag[i]) ? behind.at(tag[i]) : 0;
    steps[tag[i]] = i + 1;
    CodePointSet others = CodePointSet::All();
    for (const auto& [code, target] : steps) {
      others = others.Minus({{code, code}});
      states[i].edges.push_back({Characters({{code, code}}), target});
    }
    states[i].edges.push_back({Characters(std::move(others)), 0});
    // In state 0 no beginning of the tag is read, and tokens that contain none stay there.
    if (i == 0) states[i].text_set = TextSetWithout(tag[0]);
    if (i > 0) {
      behind.clear();
      for (const GraphEdge& edge : states[suffix_step].edges) {
        if (edge.target != 0) behind[edge.label->characters.ranges()[0].first] = edge.target;
      }
    } else {
      behind = {{tag[0], 1}};
    }
  }
  return states;
}

}  // namespace

ExpressionPtr TextUntil(std::string_view tag) {
  std::vector<GraphState> states = SearchStates(CharactersIn(tag));
  states.push_back({.edges = {}, .accepts = true});
  return Graph(std::move(states));
}

ExpressionPtr TextWithout(std::string_view tag) {
  const std::u32string characters = CharactersIn(tag);
  std::vector<GraphState> states = SearchStates(characters);
  for (GraphState& state : states) {
    std::erase_if(state.edges,
                  [&](const GraphEdge& edge) { return edge.target == characters.size(); });
    state.accepts = true;
  }
  return Graph(std::move(states));
}

}  // namespace retroinfer::constraint
