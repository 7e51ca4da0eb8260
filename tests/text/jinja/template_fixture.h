// Renders templates for the tests of this folder.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "absl/time/time.h"
#include "build_paths.h"
#include "text/jinja/errors.h"
#include "text/jinja/json_value.h"
#include "text/jinja/program.h"

namespace retroinfer::jinja {

// Small, so that no test takes long on a busy machine.
inline constexpr Limits kTestLimits = {.steps_max = uint64_t{1} << 21,
                                       .memory_bytes_max = size_t{8} << 20,
                                       .output_bytes_max = size_t{8} << 20};

// Renders `source` with the fields of a JSON object as variables.
inline absl::StatusOr<Text> RenderText(std::string_view source, std::string_view json = "{}",
                                       const Limits& limits = kTestLimits) {
  absl::StatusOr<Program> program = Program::Parse(source);
  if (!program.ok()) return program.status();
  Workspace workspace(limits, absl::FromUnixSeconds(1'700'000'000), absl::UTCTimeZone());
  const absl::StatusOr<Value> values = ParseJson(workspace, json);
  if (!values.ok()) return values.status();
  Program::Variables variables;
  for (const Dict::Entry& entry : values->AsDict()->entries) {
    variables.emplace_back(entry.first.AsText()->bytes(), entry.second);
  }
  return program->Render(workspace, variables);
}

// The text, or "error: " and the message.
inline std::string Render(std::string_view source, std::string_view json = "{}",
                          const Limits& limits = kTestLimits) {
  const absl::StatusOr<Text> text = RenderText(source, json, limits);
  return text.ok() ? text->bytes() : Concat({"error: ", std::string(text.status().message())});
}

// The text with each run of the template in "<>", each other one in "[]".
inline std::string RenderOrigins(std::string_view source, std::string_view json) {
  const absl::StatusOr<Text> text = RenderText(source, json);
  if (!text.ok()) return Concat({"error: ", std::string(text.status().message())});
  std::string shown;
  size_t begin = 0;
  for (const Text::Run& run : text->runs()) {
    shown.append(run.of_template ? "<" : "[");
    shown.append(text->bytes().substr(begin, run.end - begin));
    shown.append(run.of_template ? ">" : "]");
    begin = run.end;
  }
  return shown;
}

// Renders what tests/golden/jinja.json has under `section`, which jinja2 has rendered before
// (tools/chat_templates/make_golden.py); what jinja2 refuses must be refused with its line.
inline void ExpectGolden(const std::string& section, size_t num_cases_min) {
  std::ifstream file(RETROINFER_SOURCE_DIR "/tests/golden/jinja.json");
  const auto golden = nlohmann::ordered_json::parse(file);  // dicts have an order
  const std::string variables = golden.at("variables").dump();
  size_t num_cases = 0;
  for (const nlohmann::ordered_json& item : golden.at("sections").at(section)) {
    const auto source = item.at("source").get<std::string>();
    const absl::StatusOr<Text> text = RenderText(source, variables);
    if (item.contains("text")) {
      ASSERT_TRUE(text.ok()) << source << "\n" << text.status();
      EXPECT_EQ(text->bytes(), item.at("text").get<std::string>()) << source;
    } else {
      ASSERT_FALSE(text.ok()) << source << "\n" << text->bytes();
      EXPECT_THAT(std::string(text.status().message()), testing::StartsWith("line ")) << source;
    }
    ++num_cases;
  }
  EXPECT_GE(num_cases, num_cases_min);
}

}  // namespace retroinfer::jinja
