// All arithmetic is in f32, one rounding for each product and sum, in the order of ggml's own
// decoders: fused multiply-adds would give other last bits, and other fingerprints, on machines
// that have them, so they are off for this file (CMakeLists.txt).
#include "gpu_worker/model/gguf/gguf_blocks.h"

#include <bit>
#include <cstring>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/model/small_floats.h"

namespace retroinfer {
namespace {

uint8_t Byte(const std::byte* bytes, size_t at) { return static_cast<uint8_t>(bytes[at]); }

template <typename T>
T Load(const std::byte* bytes, size_t at = 0) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, bytes + at, sizeof(value));
  return value;
}

float Half(const std::byte* bytes, size_t at = 0) { return FromF16(Load<uint16_t>(bytes, at)); }

void DecodeF32(const std::byte* block, float* out) { *out = Load<float>(block); }
void DecodeF16(const std::byte* block, float* out) { *out = Half(block); }
void DecodeBf16(const std::byte* block, float* out) { *out = FromBf16(Load<uint16_t>(block)); }

// The codes of blocks of 32: 16 bytes, whose low halves come before their high halves.
int Nibble(const std::byte* codes, size_t i) {
  return i < 16 ? Byte(codes, i) & 15 : Byte(codes, i - 16) >> 4;
}

// d | codes
void DecodeQ40(const std::byte* block, float* out) {
  const float d = Half(block);
  for (size_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(Nibble(block + 2, i) - 8);
}

// d | m | codes
void DecodeQ41(const std::byte* block, float* out) {
  const float d = Half(block);
  const float m = Half(block, 2);
  for (size_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(Nibble(block + 4, i)) + m;
}

// d | fifth bits | codes
void DecodeQ50(const std::byte* block, float* out) {
  const float d = Half(block);
  const auto fifth = Load<uint32_t>(block, 2);
  for (size_t i = 0; i < 32; ++i) {
    const int code = Nibble(block + 6, i) | static_cast<int>((fifth >> i & 1) << 4);
    out[i] = d * static_cast<float>(code - 16);
  }
}

// d | m | fifth bits | codes
void DecodeQ51(const std::byte* block, float* out) {
  const float d = Half(block);
  const float m = Half(block, 2);
  const auto fifth = Load<uint32_t>(block, 4);
  for (size_t i = 0; i < 32; ++i) {
    const int code = Nibble(block + 8, i) | static_cast<int>((fifth >> i & 1) << 4);
    out[i] = d * static_cast<float>(code) + m;
  }
}

// d | codes of 8 bits
void DecodeQ80(const std::byte* block, float* out) {
  const float d = Half(block);
  for (size_t i = 0; i < 32; ++i) {
    out[i] = d * static_cast<float>(static_cast<int8_t>(Byte(block + 2, i)));
  }
}

// What follows are blocks of 256. Element e = 128 n + 32 j + l of codes of 2 bits is in byte
// 32 n + l, at bit 2 j.
int TwoBits(const std::byte* codes, size_t e) {
  return Byte(codes, e / 128 * 32 + e % 32) >> (e / 32 % 4 * 2) & 3;
}

// 16 x (scale: 4 bits, minimum: 4 bits) | codes of 2 bits | d | d of minima
void DecodeQ2K(const std::byte* block, float* out) {
  const float d = Half(block, 80);
  const float d_min = Half(block, 82);
  for (size_t part = 0; part < 16; ++part) {
    const float scale = d * static_cast<float>(Byte(block, part) & 15);
    const float min = d_min * static_cast<float>(Byte(block, part) >> 4);
    for (size_t e = part * 16; e < part * 16 + 16; ++e) {
      out[e] = scale * static_cast<float>(TwoBits(block + 16, e)) - min;
    }
  }
}

// Third bits, of which 0 means minus 4 | codes of 2 bits | 16 scales of 6 bits | d
void DecodeQ3K(const std::byte* block, float* out) {
  const std::byte* const scales = block + 96;
  const float d = Half(block, 108);
  for (size_t part = 0; part < 16; ++part) {
    const int low = part < 8 ? Byte(scales, part) & 15 : Byte(scales, part - 8) >> 4;
    const int high = Byte(scales, 8 + part % 4) >> (part / 4 * 2) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    for (size_t e = part * 16; e < part * 16 + 16; ++e) {
      const int third = Byte(block, e % 32) >> (e / 32) & 1;
      out[e] = scale * static_cast<float>(TwoBits(block + 32, e) - (third == 0 ? 4 : 0));
    }
  }
}

struct ScaleAndMin {
  int scale;
  int min;
};

// Eight of each, of 6 bits, in 12 bytes: those of the last four have their upper 2 bits in the
// upper 2 bits of the bytes of the first four.
ScaleAndMin SixBits(const std::byte* packed, size_t i) {
  if (i < 4) return {Byte(packed, i) & 63, Byte(packed, i + 4) & 63};
  return {(Byte(packed, i + 4) & 15) | (Byte(packed, i - 4) >> 6) << 4,
          (Byte(packed, i + 4) >> 4) | (Byte(packed, i) >> 6) << 4};
}

// The codes of 4 bits of a block of 256: part i of 32 is a half of 32 bytes.
int PartNibble(const std::byte* codes, size_t part, size_t l) {
  return Byte(codes, part / 2 * 32 + l) >> (part % 2 * 4) & 15;
}

// d | d of minima | scales and minima | codes of 4 bits
void DecodeQ4K(const std::byte* block, float* out) {
  for (size_t part = 0; part < 8; ++part) {
    const ScaleAndMin packed = SixBits(block + 4, part);
    const float scale = Half(block) * static_cast<float>(packed.scale);
    const float min = Half(block, 2) * static_cast<float>(packed.min);
    for (size_t l = 0; l < 32; ++l) {
      out[part * 32 + l] = scale * static_cast<float>(PartNibble(block + 16, part, l)) - min;
    }
  }
}

// d | d of minima | scales and minima | fifth bits | codes of 4 bits
void DecodeQ5K(const std::byte* block, float* out) {
  for (size_t part = 0; part < 8; ++part) {
    const ScaleAndMin packed = SixBits(block + 4, part);
    const float scale = Half(block) * static_cast<float>(packed.scale);
    const float min = Half(block, 2) * static_cast<float>(packed.min);
    for (size_t l = 0; l < 32; ++l) {
      const int fifth = Byte(block + 16, l) >> part & 1;
      const int code = PartNibble(block + 48, part, l) | fifth << 4;
      out[part * 32 + l] = scale * static_cast<float>(code) - min;
    }
  }
}

// Lower 4 bits, 64 bytes for each 128 | upper 2 bits | 16 scales of 8 bits | d
void DecodeQ6K(const std::byte* block, float* out) {
  const float d = Half(block, 208);
  for (size_t part = 0; part < 16; ++part) {
    const float scale = d * static_cast<float>(static_cast<int8_t>(Byte(block + 192, part)));
    for (size_t e = part * 16; e < part * 16 + 16; ++e) {
      const int low = Byte(block, e / 128 * 64 + e % 64) >> (e / 64 % 2 * 4) & 15;
      const int code = low | TwoBits(block + 128, e) << 4;
      out[e] = scale * static_cast<float>(code - 32);
    }
  }
}

constexpr GgufBlocks kSupported[] = {
    {0, "F32", 1, 4, WeightType::kF32, DecodeF32},
    {1, "F16", 1, 2, WeightType::kF16, DecodeF16},
    {30, "BF16", 1, 2, WeightType::kBf16, DecodeBf16},
    {2, "Q4_0", 32, 18, std::nullopt, DecodeQ40},
    {3, "Q4_1", 32, 20, std::nullopt, DecodeQ41},
    {6, "Q5_0", 32, 22, std::nullopt, DecodeQ50},
    {7, "Q5_1", 32, 24, std::nullopt, DecodeQ51},
    {8, "Q8_0", 32, 34, std::nullopt, DecodeQ80},
    {10, "Q2_K", 256, 84, std::nullopt, DecodeQ2K},
    {11, "Q3_K", 256, 110, std::nullopt, DecodeQ3K},
    {12, "Q4_K", 256, 144, std::nullopt, DecodeQ4K},
    {13, "Q5_K", 256, 176, std::nullopt, DecodeQ5K},
    {14, "Q6_K", 256, 210, std::nullopt, DecodeQ6K},
};

struct Named {
  uint32_t id;
  std::string_view name;
};
constexpr Named kUnsupported[] = {
    {4, "Q4_2"},      {5, "Q4_3"},     {9, "Q8_1"},   {15, "Q8_K"},     {16, "IQ2_XXS"},
    {17, "IQ2_XS"},   {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"},   {21, "IQ3_S"},
    {22, "IQ2_S"},    {23, "IQ4_XS"},  {24, "I8"},    {25, "I16"},      {26, "I32"},
    {27, "I64"},      {28, "F64"},     {29, "IQ1_M"}, {31, "Q4_0_4_4"}, {32, "Q4_0_4_8"},
    {33, "Q4_0_8_8"}, {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},    {40, "NVFP4"},
    {41, "Q1_0"},
};

}  // namespace

std::string SupportedGgufTypes() {
  std::string names;
  for (const GgufBlocks& blocks : kSupported) {
    const bool is_last = &blocks == std::end(kSupported) - 1;
    absl::StrAppend(&names, names.empty() ? "" : (is_last ? " and " : ", "),
                    std::string(blocks.name));
  }
  return names;
}

absl::StatusOr<const GgufBlocks*> GgufBlocksOf(uint32_t id) {
  for (const GgufBlocks& blocks : kSupported) {
    if (blocks.id == id) return &blocks;
  }
  for (const Named& type : kUnsupported) {
    if (type.id != id) continue;
    return absl::UnimplementedError(absl::StrCat(
        "has type ", std::string(type.name), ", which is not supported; ", SupportedGgufTypes(),
        " are: get the model in one of these (the same repository often has Q4_K_M "
        "or Q8_0)"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("has type ", id, ", which is none that is known; is the file damaged?"));
}

}  // namespace retroinfer
