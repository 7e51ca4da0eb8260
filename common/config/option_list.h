// The options of a program as data, for what is made of them: manual pages, shell completion.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace retroinfer::common {

// Asks a program for its options, and for nothing else; not one of those that --help shows.
inline constexpr char kOptionListFlag[] = "--option-list";

// Returns a JSON object: `description` and `options`, each with
//   flags        "--some-name", "-s"; none for a positional argument
//   name         of a positional argument, else ""
//   value        what kind of value it takes, "" if it takes none
//   choices      the values that it takes, if they are few
//   required, default, group, help, environment (the variable, "" if there is none)
std::string OptionListJson(const CLI::App& app);

}  // namespace retroinfer::common
