// How --help looks: 80 columns, with the values that options take and their defaults.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace retroinfer::common {

// Breaks `text` into lines of at most `columns`, between words; lines but the first begin with
// `indent` blanks, which count. Line ends in `text` stay. A longer word has a line of its own.
std::string WrapText(const std::string& text, size_t columns, size_t indent);

// Threads: one.
class HelpFormat : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_description(const CLI::App* app) const override;
  std::string make_footer(const CLI::App* app) const override;
};

}  // namespace retroinfer::common
