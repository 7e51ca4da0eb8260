#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "build_paths.h"
#include "client/command/commands.h"
#include "client/command/exit_code.h"
#include "tests/client/command_runner.h"
#include "tests/client/incomplete_folders.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;

const char kModel[] = RETROINFER_SOURCE_DIR "/models/needle";

TEST(CheckCommand, TellsTheSplitAndTheLargestContext) {
  const CommandResult result =
      RunCommand(CheckCommand, {"check", kModel, "--memory=1GiB", "--arena-bytes=256MiB"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("Largest context: "));
  EXPECT_THAT(result.out, HasSubstr("KV capacity: "));
  EXPECT_THAT(result.out, HasSubstr("It fits: "));
  EXPECT_THAT(result.out, HasSubstr("Start with: retroinfer serve --model " + std::string(kModel)));
}

// A server that is started otherwise than it was planned would need other memory.
TEST(CheckCommand, TheLineToStartWithSaysHowNumbersAreKept) {
  const CommandResult plain = RunCommand(CheckCommand, {"check", kModel});
  EXPECT_THAT(plain.out, testing::Not(HasSubstr("-dtype")));
  const CommandResult result =
      RunCommand(CheckCommand, {"check", kModel, "--kv-dtype=int8", "--index-dtype=int8"});
  EXPECT_THAT(result.out, HasSubstr(std::string(kModel) + " --kv-dtype int8 --index-dtype int8"));
}

TEST(CheckCommand, PlansForAnIndexWithCodes) {
  const CommandResult result =
      RunCommand(CheckCommand,
                 {"check", kModel, "--memory=1GiB", "--arena-bytes=256MiB", "--index-dtype=coded"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("It fits: "));
  EXPECT_THAT(result.out, HasSubstr(std::string(kModel) + " --index-dtype coded"));
}

TEST(CheckCommand, PlansForADraftModelBeside) {
  const std::string draft = "--draft-model=" + std::string(kModel);
  const CommandResult result =
      RunCommand(CheckCommand, {"check", kModel, "--memory=1GiB", "--arena-bytes=256MiB", draft});
  EXPECT_EQ(result.exit_code, kExitOk) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("for the draft model (8 texts of 4096 tokens)"));
  EXPECT_THAT(result.out, HasSubstr("--speculation auto --draft-model " + std::string(kModel)));
  const CommandResult ranks = RunCommand(
      CheckCommand,
      {"check", kModel, "--memory=1GiB", "--arena-bytes=256MiB", draft, "--tensor-parallel=2"});
  EXPECT_EQ(ranks.exit_code, kExitOk) << ranks.out << ranks.err;
  EXPECT_THAT(ranks.out, HasSubstr("for the draft model (8 texts of 4096 tokens)"));
}

TEST(CheckCommand, PlansForEachOfSeveralRanks) {
  const std::vector<std::string> arguments = {"check", kModel, "--memory=1GiB",
                                              "--arena-bytes=256MiB", "--json"};
  const auto check = [&](const std::string& ranks) {
    std::vector<std::string> all = arguments;
    all.push_back("--tensor-parallel=" + ranks);
    return nlohmann::json::parse(RunCommand(CheckCommand, all).out);
  };
  const nlohmann::json one = check("1"), two = check("2");
  EXPECT_LT(two["weight_bytes"], one["weight_bytes"]);
  EXPECT_LT(two["target_memory_bytes"], one["target_memory_bytes"]);
  // The arena is all ranks' together.
  EXPECT_EQ(two["target_arena_bytes"], one["target_arena_bytes"]);
  const CommandResult line = RunCommand(
      CheckCommand,
      {"check", kModel, "--gpu-memory=8GiB", "--arena-bytes=64MiB", "--tensor-parallel=2"});
  EXPECT_EQ(line.exit_code, kExitOk) << line.out << line.err;
  EXPECT_THAT(line.out, HasSubstr("--tensor-parallel 2 --device cuda"));
  // Ranks take the machine's memory together.
  const CommandResult shared =
      RunCommand(CheckCommand, {"check", kModel, "--host-memory=8GiB", "--arena-bytes=64MiB",
                                "--tensor-parallel=2", "--json"});
  EXPECT_EQ(nlohmann::json::parse(shared.out)["memory_bytes"], uint64_t{2} << 30);
  const CommandResult much =
      RunCommand(CheckCommand, {"check", kModel, "--host-memory=320MiB", "--memory=300MiB",
                                "--arena-bytes=64MiB", "--tensor-parallel=2"});
  EXPECT_EQ(much.exit_code, kExitFailed) << much.out;
  EXPECT_THAT(much.out + much.err, HasSubstr("worker and arena take"));
  const CommandResult refused = RunCommand(CheckCommand, {"check", kModel, "--tensor-parallel=3"});
  EXPECT_EQ(refused.exit_code, kExitFailed);
  EXPECT_THAT(refused.err, HasSubstr("8 query heads"));
}

TEST(CheckCommand, PlansForAGpuThatIsSomewhereElse) {
  const CommandResult result =
      RunCommand(CheckCommand, {"check", kModel, "--gpu-memory=8GiB", "--arena-bytes=64MiB"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("(--gpu-memory)"));
  EXPECT_THAT(result.out, HasSubstr("(32768 slots)"));
}

TEST(CheckCommand, PlansForAnotherMachineFromConfigJsonAlone) {
  std::string pattern = (std::filesystem::temp_directory_path() / "retroinfer-XXXXXX").string();
  const std::filesystem::path folder = ::mkdtemp(pattern.data());
  std::filesystem::copy(std::string(kModel) + "/config.json", folder);
  const auto check = [](const std::string& path) {
    return RunCommand(CheckCommand,
                      {"check", path, "--host-memory=64GiB", "--gpu-memory=16GiB",
                       "--arena-bytes=16GiB", "--users=4", "--context=64K", "--json"});
  };
  const CommandResult of_folder = check(folder.string());
  ASSERT_EQ(of_folder.exit_code, kExitOk) << of_folder.out << of_folder.err;
  const auto json = nlohmann::json::parse(of_folder.out);
  EXPECT_EQ(json["available_bytes"], uint64_t{64} << 30);
  EXPECT_EQ(json["target_context_tokens"], 65536);
  EXPECT_EQ(json["users"], 4);
  EXPECT_EQ(check((folder / "config.json").string()).out, of_folder.out);
  // The weights are as large as those that the folder has.
  const auto with_weights = nlohmann::json::parse(check(kModel).out);
  EXPECT_NEAR(json["weight_bytes"].get<double>(), with_weights["weight_bytes"].get<double>(),
              0.02 * with_weights["weight_bytes"].get<double>());
  std::filesystem::remove_all(folder);
  EXPECT_EQ(check(folder.string()).exit_code, kExitFailed);
}

// What programs that measure without a checkpoint ask for: the arena of N contexts.
TEST(CheckCommand, AShapeNeedsNoModel) {
  const auto arena_gib = [](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"check",           "--model-shape=llama-3.1-8b",
                                          "--kv-dtype=int8", "--users=14",
                                          "--context=120K",  "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = RunCommand(CheckCommand, arguments);
    return nlohmann::json::parse(result.out)["target_arena_bytes"].get<double>() / (1 << 30);
  };
  // 65,536 bytes of keys and values a token, and an index of 0.56 GiB a context.
  const double packed = arena_gib({"--index-dtype=packed"});
  EXPECT_NEAR(packed, 14 * (7.5 + 0.56), 0.2);
  EXPECT_NEAR(arena_gib({}) / packed, 1.41, 0.02);
  EXPECT_EQ(arena_gib({"--index-dtype=packed", "--tensor-parallel=2"}), packed);

  const CommandResult text = RunCommand(
      CheckCommand, {"check", "--model-shape=tiny", "--memory=1GiB", "--arena-bytes=64MiB"});
  EXPECT_EQ(text.exit_code, kExitOk) << text.out << text.err;
  EXPECT_THAT(text.out,
              HasSubstr("Start with: retroinfer serve --load-format dummy --model-shape tiny "));
}

TEST(CheckCommand, ShapesThatThereAreNotAreTold) {
  const CommandResult unknown = RunCommand(CheckCommand, {"check", "--model-shape=llama-9-9b"});
  EXPECT_EQ(unknown.exit_code, kExitFailed);
  EXPECT_THAT(unknown.err, HasSubstr("there are llama-3-8b"));
  const CommandResult both = RunCommand(CheckCommand, {"check", kModel, "--model-shape=tiny"});
  EXPECT_EQ(both.exit_code, kExitUsage);
  EXPECT_THAT(both.err, HasSubstr("not both"));
}

TEST(CheckCommand, NumbersOfTokensAreRefusedInOneLine) {
  for (const char* const context : {"-1", "128Q", "1e300", "many"}) {
    const CommandResult result =
        RunCommand(CheckCommand, {"check", kModel, std::string("--context=") + context});
    EXPECT_EQ(result.exit_code, kExitUsage) << context;
    EXPECT_THAT(result.err, HasSubstr("write for example 131072, 128K or 1M"));
    EXPECT_LT(result.err.size(), 250u) << result.err;
  }
}

TEST(CheckCommand, JsonIsForPrograms) {
  const CommandResult result =
      RunCommand(CheckCommand, {"check", kModel, "--memory=1GiB", "--arena-bytes=64MiB", "--json"});
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["fits"], true);
  EXPECT_GT(json["largest_context_tokens"], 1024);
  EXPECT_EQ(json["memory_bytes"], 1 << 30);
}

TEST(CheckCommand, SaysWhichChatTemplateThereIs) {
  std::string pattern = (std::filesystem::temp_directory_path() / "retroinfer-XXXXXX").string();
  const std::string folder = ::mkdtemp(pattern.data());
  const auto check = [&folder](const std::string& text) {
    std::ofstream(folder + "/chat.jinja") << text;
    return RunCommand(CheckCommand, {"check", kModel, "--memory=1GiB", "--arena-bytes=64MiB",
                                     "--chat-template=" + folder + "/chat.jinja"});
  };
  EXPECT_THAT(RunCommand(CheckCommand, {"check", kModel, "--memory=1GiB"}).out,
              HasSubstr("Chat     template of tokenizer_config.json\n"));
  const CommandResult good = check("{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_EQ(good.exit_code, kExitOk) << good.err;
  EXPECT_THAT(good.out, HasSubstr("Chat     template of " + folder + "/chat.jinja\n"));
  const CommandResult bad = check("text\n{% for m in messages %}");
  EXPECT_EQ(bad.exit_code, kExitFailed);
  EXPECT_THAT(bad.err, HasSubstr("--chat-template: "));
  EXPECT_THAT(bad.err, HasSubstr("line 2"));
  std::filesystem::remove_all(folder);
  EXPECT_EQ(RunCommand(CheckCommand, {"check", kModel, "--chat-template=/no/such"}).exit_code,
            kExitFailed);
}

// A model whose keys have biases, small ones, and a tokenizer of bytes.
void CopyModelWithBiases(const std::filesystem::path& folder) {
  std::filesystem::copy(RETROINFER_SOURCE_DIR "/tests/golden/models/qwen2-d64-group7-mixed",
                        folder);
  nlohmann::json vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    AppendUtf8(ByteAlphabetCharacter(static_cast<uint8_t>(byte)), token);
    vocabulary[token] = byte;
  }
  std::ofstream(folder / "tokenizer.json")
      << nlohmann::json{{"model", {{"vocab", vocabulary}, {"merges", nlohmann::json::array()}}},
                        {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                        {"decoder", {{"type", "ByteLevel"}}}};
}

// Writes `value` over the bias of one channel of keys, an f32, of layer 1.
void SetBias(const std::filesystem::path& folder, size_t channel, float value) {
  std::fstream file(folder / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  std::string header(header_bytes, '\0');
  file.read(header.data(), static_cast<std::streamsize>(header_bytes));
  const nlohmann::json tensor =
      nlohmann::json::parse(header)["model.layers.1.self_attn.k_proj.bias"];
  ASSERT_EQ(tensor["dtype"], "F32");
  const size_t begin = tensor["data_offsets"][0];
  file.seekp(static_cast<std::streamoff>(8 + header_bytes + begin + channel * sizeof(float)));
  file.write(reinterpret_cast<const char*>(&value), sizeof(value));
}

TEST(CheckCommand, BiasesThatEightBitsDoNotBearAreTold) {
  std::string pattern = (std::filesystem::temp_directory_path() / "retroinfer-XXXXXX").string();
  const std::filesystem::path folder = ::mkdtemp(pattern.data());
  CopyModelWithBiases(folder);
  const auto check = [&](const std::string& kv_dtype) {
    return RunCommand(CheckCommand, {"check", folder, "--memory=1GiB", "--arena-bytes=64MiB",
                                     "--kv-dtype=" + kv_dtype});
  };
  EXPECT_EQ(check("int8").exit_code, kExitOk) << check("int8").err;
  SetBias(folder, 21, 1e7f);
  const CommandResult refused = check("int8");
  EXPECT_EQ(refused.exit_code, kExitFailed) << refused.out;
  EXPECT_THAT(refused.err, HasSubstr("the bias of keys in layer 1, head 0, channel 21 is "));
  EXPECT_THAT(refused.err, HasSubstr("use --kv-dtype bf16"));
  EXPECT_EQ(check("bf16").exit_code, kExitOk) << check("bf16").err;
  std::filesystem::remove_all(folder);
}

TEST(CheckCommand, WhatDoesNotFitIsAFailure) {
  const CommandResult result =
      RunCommand(CheckCommand, {"check", kModel, "--memory=20MiB", "--arena-bytes=64MiB"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.out, HasSubstr("needs at least"));
}

TEST(CheckCommand, FoldersThatLackSomethingAreExplained) {
  for (const test_support::IncompleteFolder& incomplete : test_support::IncompleteFolders()) {
    const test_support::TempFolder folder;
    folder.CopyFrom(kModel);
    const CommandResult result = RunCommand(CheckCommand, {"check", incomplete.make(folder)});
    EXPECT_EQ(result.exit_code, kExitFailed) << incomplete.told;
    EXPECT_THAT(result.err, HasSubstr(incomplete.told));
  }
}

TEST(CheckCommand, TheScalingOfRopeLengthensTheContext) {
  const auto check = [](const std::string& scaling) {
    return RunCommand(CheckCommand, {"check", kModel, "--memory=1GiB", "--arena-bytes=64MiB",
                                     "--rope-scaling=" + scaling});
  };
  const CommandResult result = check("yarn:4");
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr("made for 524,288 tokens with --rope-scaling yarn:4\n"));
  EXPECT_THAT(result.out, HasSubstr("needle --rope-scaling yarn:4 --arena-bytes"));
  EXPECT_EQ(check("ntk").exit_code, kExitFailed);
  EXPECT_THAT(check("ntk").err, HasSubstr("yarn:FACTOR"));
}

TEST(CheckCommand, BadFoldersAndFlagsAreTold) {
  const CommandResult missing = RunCommand(CheckCommand, {"check", "/no/such/model"});
  EXPECT_EQ(missing.exit_code, kExitFailed);
  EXPECT_THAT(missing.err, HasSubstr("/no/such/model"));
  const CommandResult nothing = RunCommand(CheckCommand, {"check"});
  EXPECT_EQ(nothing.exit_code, kExitUsage);
  EXPECT_THAT(nothing.err, HasSubstr("give a model folder"));
  EXPECT_EQ(RunCommand(CheckCommand, {"check", kModel, "--memory=lots"}).exit_code, kExitUsage);
}

}  // namespace
}  // namespace retroinfer::client
