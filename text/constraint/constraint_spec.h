// What a request says its answer must look like.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace retroinfer::constraint {

// Free text between two tags, before the constrained text; at most 8 characters of white space may
// follow it. A tag that is the content of a special token is that token, any other one is text.
struct Thoughts {
  std::string open;   // "<think>"; empty: the prompt has opened the thoughts, and they must come
  std::string close;  // "</think>"; not empty

  bool operator==(const Thoughts&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const Thoughts& thoughts) {
    return H::combine(std::move(hash), thoughts.open, thoughts.close);
  }
};

struct ConstraintSpec {
  enum class Form {
    kJsonSchema,  // a JSON text of a value that the schema `text` accepts
    kRegex,       // a text that the regular expression `text` matches as a whole
    kChoices,     // one of `choices`
    kGrammar,     // a text of the rule "root" of the grammar `text`
  };
  Form form = Form::kJsonSchema;
  std::string text;
  std::vector<std::string> choices;
  std::optional<Thoughts> thoughts;  // may come before the text

  bool operator==(const ConstraintSpec&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const ConstraintSpec& spec) {
    return H::combine(std::move(hash), spec.form, spec.text, spec.choices,
                      spec.thoughts.has_value() ? spec.thoughts->open : "",
                      spec.thoughts.has_value() ? spec.thoughts->close : "");
  }
};

}  // namespace retroinfer::constraint
