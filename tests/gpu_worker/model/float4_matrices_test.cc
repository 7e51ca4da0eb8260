#include "gpu_worker/model/float4_matrices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "gpu_worker/model/small_floats.h"
#include "tests/gpu_worker/model/golden_model.h"
#include "tests/gpu_worker/model/safetensors_text.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::GoldenModelFolder;
using test_support::TensorText;
using ::testing::HasSubstr;

constexpr char kCompressed[] = "llama-nvfp4-ct";
constexpr char kModelOpt[] = "llama-nvfp4-modelopt";
constexpr char kMicroscaled[] = "qwen2-mxfp4-ct";
constexpr char kExperts[] = "qwen3moe-nvfp4-modelopt";
const std::string kUp = "model.layers.0.mlp.up_proj.";

std::vector<std::byte> BytesOf(const HostTensor& tensor) {
  std::vector<std::byte> memory;
  const auto bytes = tensor.Bytes(0, tensor.num_bytes(), memory);
  return {bytes.begin(), bytes.end()};
}

float FloatOf(const std::string& bytes) {
  float value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}
std::string BytesOf(float value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

// By the words of the formats: a sign, exponents with their biases, what is behind the point.
float E2m1(int code) {
  const int exponent = code >> 1 & 3;
  const float size = exponent == 0
                         ? 0.5f * static_cast<float>(code & 1)
                         : std::ldexp(1 + 0.5f * static_cast<float>(code & 1), exponent - 1);
  return code >= 8 ? -size : size;
}
float E4m3(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const float part = static_cast<float>(code & 7) / 8;
  const float size = exponent == 0 ? std::ldexp(part, -6) : std::ldexp(1 + part, exponent - 7);
  return code >= 128 ? -size : size;
}

class Float4MatricesTest : public ::testing::Test {
 protected:
  // Takes a golden model's configuration and tensors.
  void Use(const std::string& name) {
    config_ = *LoadModelConfig(GoldenModelFolder(name));
    const Checkpoint stored = *Checkpoint::Open(GoldenModelFolder(name));
    tensors_.clear();
    for (const auto& [tensor_name, tensor] : stored.tensors()) {
      tensors_[tensor_name] = {
          tensor_name, std::string(WeightTypeName(tensor.type)), tensor.shape,
          std::string(reinterpret_cast<const char*>(tensor.stored.data()), tensor.stored.size())};
    }
  }
  // A checkpoint of `tensors_`.
  Checkpoint Open() {
    std::vector<TensorText> list;
    for (const auto& [name, tensor] : tensors_) list.push_back(tensor);
    folder_.Write("model.safetensors", test_support::SafetensorsText(list));
    return *Checkpoint::Open(folder_.path());
  }
  Checkpoint Unpacked() {
    Checkpoint checkpoint = Open();
    const absl::Status status = UnpackFloat4(config_, checkpoint);
    EXPECT_TRUE(status.ok()) << status;
    return checkpoint;
  }
  // What is stored, and is refused, is left as it is.
  void ExpectRefused(const std::string& name, const std::string& problem) {
    Checkpoint checkpoint = Open();
    const absl::Status status = UnpackFloat4(config_, checkpoint);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"" + name + "\""));
    EXPECT_THAT(std::string(status.message()), HasSubstr(problem));
    EXPECT_FALSE(checkpoint.is_coded());
    EXPECT_EQ(checkpoint.tensors().size(), tensors_.size());
  }
  // What the scales of the matrix `module` are found to be.
  absl::Status Checked(const std::string& module) {
    return Unpacked().tensors().at(module + "weight").coding->Check();
  }
  void ExpectUnsound(const std::string& name, const std::string& bytes, const std::string& held) {
    const std::string before = tensors_.at(name).bytes;
    tensors_.at(name).bytes.replace(0, bytes.size(), bytes);
    const absl::Status status = Checked(kUp);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << held;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"" + name + "\" holds " + held));
    tensors_.at(name).bytes = before;
  }
  void ExpectNumbers(const std::string& module);

  ModelConfig config_;
  std::map<std::string, TensorText> tensors_;
  test_support::TempFolder folder_;
};

void Float4MatricesTest::ExpectNumbers(const std::string& module) {
  const Checkpoint checkpoint = Unpacked();
  const HostTensor& tensor = checkpoint.tensors().at(module + "weight");
  const Float4Form& form = *config_.float4;
  const bool is_modelopt = form.method == "modelopt";
  const std::string& codes = tensors_.at(module + (is_modelopt ? "weight" : "weight_packed")).bytes;
  const std::string& scales = tensors_.at(module + "weight_scale").bytes;
  ASSERT_EQ(tensor.type, WeightType::kBf16);
  ASSERT_EQ(tensor.num_bytes(), codes.size() * 4);
  const std::vector<std::byte> bytes = BytesOf(tensor);
  ASSERT_TRUE(tensor.coding->Check().ok());
  size_t num_others = 0;
  for (size_t i = 0; i < codes.size() * 2; ++i) {
    const auto pair = static_cast<uint8_t>(codes[i / 2]);
    const auto scale = static_cast<uint8_t>(scales[i / static_cast<size_t>(form.group)]);
    float factor = 0;
    if (is_modelopt) {
      factor = E4m3(scale) * FloatOf(tensors_.at(module + "weight_scale_2").bytes);
    } else if (form.name == "NVFP4") {
      factor = E4m3(scale) / FloatOf(tensors_.at(module + "weight_global_scale").bytes);
    } else {
      factor = std::ldexp(1.0f, int{scale} - 127);
    }
    const float want = E2m1(i % 2 == 0 ? pair & 15 : pair >> 4) * factor;
    uint16_t got;
    std::memcpy(&got, bytes.data() + 2 * i, sizeof(got));
    ASSERT_EQ(got, ToBf16(want)) << module << " " << i;
    num_others += want != 0;
  }
  EXPECT_GT(num_others, codes.size());
}

TEST_F(Float4MatricesTest, NumbersAreThoseOfTheCodes) {
  for (const char* name : {kCompressed, kModelOpt, kMicroscaled}) {
    Use(name);
    ExpectNumbers(kUp);
    ExpectNumbers("model.layers.0.self_attn.q_proj.");
  }
  Use(kExperts);
  ExpectNumbers("model.layers.0.mlp.experts.4.down_proj.");
}

// Loading reads pieces, the balance of channels rows; both may begin and end within a byte.
TEST_F(Float4MatricesTest, AnyPieceIsThatOfTheWhole) {
  for (const char* name : {kCompressed, kMicroscaled}) {
    Use(name);
    const Checkpoint checkpoint = Unpacked();
    const HostTensor& tensor = checkpoint.tensors().at(kUp + "weight");
    const std::vector<std::byte> whole = BytesOf(tensor);
    std::vector<std::byte> memory;
    for (const size_t size : {size_t{0}, size_t{2}, size_t{6}, size_t{30}, size_t{32}, size_t{34},
                              size_t{62}, size_t{258}, size_t{4098}}) {
      for (size_t begin = 0; begin + size <= whole.size(); begin += 2 * (size / 2 | 1)) {
        const auto piece = tensor.Bytes(begin, size, memory);
        ASSERT_TRUE(
            std::equal(piece.begin(), piece.end(), whole.begin() + static_cast<ptrdiff_t>(begin)))
            << name << " " << begin << " " << size;
      }
    }
    const size_t last = whole.size() - 2;
    EXPECT_EQ(tensor.Bytes(last, 2, memory)[0], whole[last]);
  }
}

TEST_F(Float4MatricesTest, WhatIsNumbersStaysAndPartsAreGone) {
  Use(kMicroscaled);
  const size_t stored_bytes = Open().total_bytes();
  const Checkpoint checkpoint = Unpacked();
  EXPECT_EQ(checkpoint.tensors().at("model.layers.0.self_attn.o_proj.weight").coding, nullptr);
  EXPECT_NE(checkpoint.tensors().at(kUp + "weight").coding, nullptr);
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    EXPECT_FALSE(HasScales(tensor.type)) << name;
    EXPECT_EQ(name.find("weight_"), std::string::npos) << name;
  }
  EXPECT_TRUE(checkpoint.is_coded());
  EXPECT_GT(checkpoint.total_bytes(), stored_bytes);
  Use(kModelOpt);
  TensorText& numbers = tensors_.at(kUp + "weight");
  numbers = {numbers.name, "BF16", {144, 128}, std::string(144 * 128 * 2, '\x3f')};
  tensors_.erase(kUp + "weight_scale");
  tensors_.erase(kUp + "weight_scale_2");
  EXPECT_EQ(Unpacked().tensors().at(kUp + "weight").coding, nullptr);
}

TEST_F(Float4MatricesTest, OthersAreLeftAlone) {
  Use(kCompressed);
  config_.float4.reset();
  EXPECT_TRUE(Unpacked().tensors().contains(kUp + "weight_packed"));
  EXPECT_FALSE(Unpacked().is_coded());
}

TEST_F(Float4MatricesTest, PartsThatAreMissingOrOfAnotherKindAreNamed) {
  for (const char* model : {kCompressed, kModelOpt, kMicroscaled}) {
    Use(model);
    const auto sound = tensors_;
    const Float4Form form = *config_.float4;
    for (const std::string_view end : {form.scales_end, form.global_end}) {
      if (end.empty()) continue;
      const std::string name = kUp + std::string(end);
      tensors_.erase(name);
      ExpectRefused(name, "is missing");
      tensors_ = sound;
      tensors_.at(name).dtype = end == form.global_end                   ? "I32"
                                : form.scale_type == WeightType::kF8E4M3 ? "U8"
                                                                         : "F8_E4M3";
      ExpectRefused(name, form.ToString());
      tensors_ = sound;
      tensors_.at(name).shape.push_back(1);
      tensors_.at(name).shape.push_back(1);
      ExpectRefused(name,
                    "needs " + std::string(end == form.global_end               ? "F32 [1]"
                                           : form.scale_type == WeightType::kU8 ? "U8 [160, 4]"
                                                                                : "F8_E4M3 ["));
      tensors_ = sound;
    }
    const std::string codes = kUp + std::string(form.codes_end);
    tensors_.at(codes).dtype = "F8_E4M3";
    ExpectRefused(codes, "needs U8");
    tensors_ = sound;
    std::swap(tensors_.at(codes).shape[0], tensors_.at(codes).shape[1]);
    ExpectRefused(codes, "needs U8 [1");
  }
}

TEST_F(Float4MatricesTest, AMatrixIsNotStoredTwice) {
  Use(kCompressed);
  tensors_[kUp + "weight"] = {kUp + "weight", "BF16", {1}, "xx"};
  ExpectRefused(kUp + "weight_packed", kUp + "weight\"");
}

TEST_F(Float4MatricesTest, RowsAreOfWholeGroups) {
  Use(kMicroscaled);
  config_.hidden_size = 136;
  ExpectRefused("model.layers.0.mlp.gate_proj.weight_packed", "136 input features");
}

TEST_F(Float4MatricesTest, ScalesThatGiveNoNumbersAreNamed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const char* model : {kCompressed, kModelOpt}) {
    Use(model);
    const std::string global = kUp + std::string(config_.float4->global_end);
    ExpectUnsound(global, BytesOf(0.0f), "0");
    ExpectUnsound(global, BytesOf(-1.0f), "-1");
    ExpectUnsound(global, BytesOf(kInfinity), "inf");
    ExpectUnsound(global, BytesOf(std::nanf("")), "nan");
    ExpectUnsound(kUp + "weight_scale", "\x7f", "nan");
    ExpectUnsound(kUp + "weight_scale", "\xff", "nan");
    ExpectUnsound(kUp + "weight_scale", "\xb8", "-1");
    // Of no use, and no harm: a group of zeros.
    tensors_.at(kUp + "weight_scale").bytes[0] = 0;
    EXPECT_TRUE(Checked(kUp).ok());
  }
  // Both are finite, their quotient is not.
  Use(kCompressed);
  tensors_.at(kUp + "weight_global_scale").bytes = BytesOf(1e-37f);
  ExpectUnsound(kUp + "weight_scale", "\x7e", "448");

  Use(kMicroscaled);
  ExpectUnsound(kUp + "weight_scale", "\xff", "nan");
  ExpectUnsound(kUp + "weight_scale", "\xfd", "8.50706e+37");  // times 6 is too much
  tensors_.at(kUp + "weight_scale").bytes[0] = '\xfc';
  EXPECT_TRUE(Checked(kUp).ok());
}

}  // namespace
}  // namespace retroinfer
