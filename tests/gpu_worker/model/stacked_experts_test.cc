#include "gpu_worker/model/stacked_experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "gpu_worker/model/host_numbers.h"
#include "tests/gpu_worker/model/golden_model.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = "gptoss-d64-mxfp4";
const std::string kExperts = "model.layers.1.mlp.experts.";

std::vector<std::byte> BytesOf(const HostTensor& tensor) {
  std::vector<std::byte> memory;
  const auto bytes = tensor.Bytes(0, tensor.num_bytes(), memory);
  return {bytes.begin(), bytes.end()};
}

class StackedExpertsTest : public ::testing::Test {
 protected:
  StackedExpertsTest()
      : config_(*LoadModelConfig(test_support::GoldenModelFolder(kModel))),
        stacked_(*Checkpoint::Open(test_support::GoldenModelFolder(kModel))),
        apart_(*Checkpoint::Open(test_support::GoldenModelFolder(kModel))) {
    EXPECT_TRUE(UnstackExperts(config_, apart_).ok());
  }

  ModelConfig config_;
  Checkpoint stacked_, apart_;
};

// By the format's own words: a code of four bits times two to the power of a byte less 127.
TEST_F(StackedExpertsTest, NumbersAreThoseOfTheCodes) {
  constexpr float kNumbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const auto& tensors = stacked_.tensors();
  const std::vector<std::byte> codes = BytesOf(tensors.at(kExperts + "gate_up_proj_blocks"));
  const std::vector<std::byte> powers = BytesOf(tensors.at(kExperts + "gate_up_proj_scales"));
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  const auto rows = static_cast<size_t>(config_.intermediate_size);
  size_t num_others = 0;
  for (const size_t expert : {0, 5}) {
    for (const size_t part : {0, 1}) {
      const std::string name =
          kExperts + std::to_string(expert) + (part == 0 ? ".gate_proj" : ".up_proj") + ".weight";
      const HostTensor& tensor = apart_.tensors().at(name);
      EXPECT_EQ(tensor.type, WeightType::kBf16);
      EXPECT_EQ(tensor.shape,
                (std::vector<int64_t>{config_.intermediate_size, config_.hidden_size}));
      const std::vector<float> numbers = NumbersOf(tensor.type, BytesOf(tensor));
      for (size_t i = 0; i < rows * hidden; ++i) {
        const size_t at = (expert * 2 * rows + 2 * (i / hidden) + part) * hidden + i % hidden;
        const auto pair = static_cast<uint8_t>(codes[at / 2]);
        const int code = at % 2 == 0 ? pair & 15 : pair >> 4;
        const float want = std::ldexp(code < 8 ? kNumbers[code] : -kNumbers[code - 8],
                                      static_cast<int>(powers[at / 32]) - 127);
        ASSERT_EQ(numbers[i], want) << name << " " << i;
        num_others += want != 0;
      }
    }
  }
  EXPECT_GT(num_others, rows * hidden);
}

TEST_F(StackedExpertsTest, BiasesOfGateAndUpAreTakenInTurn) {
  const std::vector<std::byte> all = BytesOf(stacked_.tensors().at(kExperts + "gate_up_proj_bias"));
  const auto rows = static_cast<size_t>(config_.intermediate_size);
  const std::vector<float> stacked = NumbersOf(WeightType::kBf16, all);
  const auto& up = apart_.tensors().at(kExperts + "3.up_proj.bias");
  const std::vector<float> numbers = NumbersOf(up.type, BytesOf(up));
  ASSERT_EQ(numbers.size(), rows);
  for (size_t i = 0; i < rows; ++i) EXPECT_EQ(numbers[i], stacked[3 * 2 * rows + 2 * i + 1]);
  EXPECT_EQ(apart_.tensors().at(kExperts + "2.down_proj.bias").shape,
            (std::vector<int64_t>{config_.hidden_size}));
}

// Loading reads pieces, which end where they end.
TEST_F(StackedExpertsTest, AnyPieceIsThatOfTheWhole) {
  for (const char* end : {"4.gate_proj.weight", "4.down_proj.weight", "4.up_proj.bias"}) {
    const HostTensor& tensor = apart_.tensors().at(kExperts + end);
    const std::vector<std::byte> whole = BytesOf(tensor);
    std::vector<std::byte> memory;
    for (const size_t size : {size_t{2}, size_t{6}, size_t{62}, size_t{64}}) {
      for (size_t begin = 0; begin + size <= whole.size(); begin += 2 * (size / 2 | 1)) {
        const auto piece = tensor.Bytes(begin, size, memory);
        ASSERT_TRUE(
            std::equal(piece.begin(), piece.end(), whole.begin() + static_cast<ptrdiff_t>(begin)))
            << end << " " << begin;
      }
    }
  }
}

TEST_F(StackedExpertsTest, TheStackedTensorsAreGone) {
  for (const auto& [name, tensor] : apart_.tensors()) {
    EXPECT_EQ(name.find("_blocks"), std::string::npos);
    EXPECT_EQ(name.find("_scales"), std::string::npos);
  }
  EXPECT_TRUE(apart_.is_coded());
  EXPECT_GT(apart_.total_bytes(), stacked_.total_bytes());
  EXPECT_THAT(std::string(NoteOfUnstacking(config_)), HasSubstr("MXFP4"));
}

TEST_F(StackedExpertsTest, OtherShapesAreRefusedAndNothingChanges) {
  config_.experts.count = 7;
  const absl::Status status = UnstackExperts(config_, stacked_);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("gate_up_proj_blocks"));
  EXPECT_TRUE(stacked_.tensors().contains(kExperts + "gate_up_proj_blocks"));
  config_.hidden_size = 40;
  EXPECT_EQ(UnstackExperts(config_, stacked_).code(), absl::StatusCode::kUnimplemented);
  config_.family = ModelFamily::kQwen3Moe;
  EXPECT_TRUE(UnstackExperts(config_, stacked_).ok());
  EXPECT_TRUE(NoteOfUnstacking(config_).empty());
}

}  // namespace
}  // namespace retroinfer
