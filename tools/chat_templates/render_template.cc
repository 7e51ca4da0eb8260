// Renders a Jinja template with the worker's interpreter: render_template TEMPLATE < LINES
//
// Each line of the input is a JSON object of variables; each line of the output is
// {"text": what the template wrote} or {"error": why it could not}. Strings whose variable's name
// ends in "_token" count as the template's own. With --origins there is also "runs":
// [[end, of_template], ...].
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/time/clock.h"
#include "text/jinja/json_value.h"
#include "text/jinja/program.h"

namespace retroinfer::jinja {
namespace {

nlohmann::json ErrorJson(const absl::Status& status) { return {{"error", status.ToString()}}; }

nlohmann::json RenderLine(const Program& program, const std::string& line, bool origins) {
  Workspace workspace({}, absl::Now(), absl::LocalTimeZone());
  const absl::StatusOr<Value> values = ParseJson(workspace, line);
  if (!values.ok()) return ErrorJson(values.status());
  if (values->AsDict() == nullptr) return {{"error", "a line must be a JSON object"}};
  Program::Variables variables;
  for (const Dict::Entry& entry : values->AsDict()->entries) {
    const std::string& name = entry.first.AsText()->bytes();
    Value value = entry.second;
    if (value.AsText() != nullptr && name.ends_with("_token")) {
      value = Value::OfText(Text(value.AsText()->bytes(), true));
    }
    variables.emplace_back(name, value);
  }
  const absl::StatusOr<Text> text = program.Render(workspace, variables);
  if (!text.ok()) return ErrorJson(text.status());
  nlohmann::json result = {{"text", text->bytes()}};
  if (origins) {
    for (const Text::Run& run : text->runs()) result["runs"].push_back({run.end, run.of_template});
  }
  return result;
}

int Main(int argc, char** argv) {
  const bool origins = argc == 3 && std::string(argv[2]) == "--origins";
  if (argc != 2 && !origins) {
    std::cerr << "usage: render_template TEMPLATE [--origins] < LINES\n";
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  const std::string source{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const absl::StatusOr<Program> program = Program::Parse(source);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << (program.ok() ? RenderLine(*program, line, origins) : ErrorJson(program.status()))
              << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace retroinfer::jinja

int main(int argc, char** argv) { return retroinfer::jinja::Main(argc, argv); }
