// How keys and values are stored: the one description of it. Sizes and places of all that holds KV
// follow from a KvFormat (PageLayout here, KvGeometry, SegmentLayout, and the pools of gpu_worker);
// operations choose their code by the element types that it names. To add one: a number, an entry
// of kKvFormats, and code for its element types in the operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/kv/dtype.h"

namespace retroinfer {

// Bytes of keys and values in a full page of the formats without scales.
inline constexpr size_t kPageBytes = 2048;

// Part of segment headers, exported files, the store's state, fingerprints and the protocol between
// the services: never give a number to another format.
enum class KvFormatId : uint32_t {
  kF32 = 1,
  kBf16 = 2,
  kF16 = 3,
  kBf16Int8 = 4,
  kInt8 = 5,
  kBf16Coded = 6,
  kInt8Coded = 7,
  kInt8Packed = 8,
  kBf16Packed = 9
};

// What has a scale of its own: a factor that its elements are multiplied by. Scales lie behind the
// array; kVectorWithin: each vector has one, which is written into its own elements.
enum class ScalePer : uint8_t { kNothing, kVector, kArray, kVectorWithin };

// How an array of vectors of head_dim numbers is stored: [n][head_dim] elements, then its scales,
// each of the two padded with zeros to a multiple of 16 bytes.
//
// int8 has a scale for each vector, in f16: the smallest that is at least the largest |number| /
// 127, at most 65504. An element is the number divided by that scale (both in f32), rounded to the
// nearest integer, ties to even, from -127 to 127. A vector of zeros has scale 0; one that holds
// infinity or NaN has elements of 0 and scale NaN, so that it is NaN as in the other types.
//
// int8 with its scale within (decisions 0054 and 0058) has a power of two, 2^(code - 40), for each
// vector: the least from code 0 to 62 with which the largest |number| is at most 127. An element is
// the number divided by it, rounded to the nearest integer, ties to even; the first six elements to
// the nearest even integer from -126 to 126, and their lowest bits, which do not count, hold the
// code, lowest bit first. Code 63 is a vector that holds infinity, NaN, or what no code reaches:
// all of it is NaN. Zeros are zero bytes. Each number that comes out of this is exact in bf16, and
// rounding it again gives the same bytes.
struct VectorFormat {
  DType element = DType::kBf16;
  ScalePer scale_per = ScalePer::kNothing;
  DType scale = DType::kF32;  // element type of the scales, if any

  // Bytes of the elements of one vector.
  constexpr size_t vector_bytes(uint32_t head_dim) const { return head_dim * DTypeBytes(element); }
  // Where the scales of an array of `n` vectors begin; its end if it has none.
  constexpr size_t ScalesOffset(size_t n, uint32_t head_dim) const {
    return Padded(n * vector_bytes(head_dim));
  }
  constexpr size_t ArrayBytes(size_t n, uint32_t head_dim) const {
    const size_t scales = !has_scales() ? 0 : scale_per == ScalePer::kArray ? 1 : n;
    return ScalesOffset(n, head_dim) + Padded(scales * DTypeBytes(scale));
  }
  // Whether the elements are the numbers themselves.
  constexpr bool IsPlain(DType type) const {
    return element == type && scale_per == ScalePer::kNothing;
  }

  // Whether there are scales behind the elements.
  constexpr bool has_scales() const {
    return scale_per == ScalePer::kVector || scale_per == ScalePer::kArray;
  }

  friend bool operator==(const VectorFormat&, const VectorFormat&) = default;

 private:
  static constexpr size_t Padded(size_t bytes) { return (bytes + 15) / 16 * 16; }
};

struct KvFormat {
  KvFormatId id = KvFormatId::kBf16;
  std::string_view name = "bf16";  // in messages
  VectorFormat token;              // the keys, and the values, of a page: in the arena, in a slot,
                                   // in a dense block
  VectorFormat centroid;           // of a segment, and of its meta blocks
  VectorFormat value_sum;          // the same
  DType prompt = DType::kBf16;     // keys and values of one layer while a prompt is read, rounded
                                   // as `token` rounds: what is attended must be what is stored,
                                   // or a prefix that is found would give other tokens than one
                                   // that is computed
  size_t page_vector_bytes = kPageBytes;  // keys and values of a full page, scales apart
  uint32_t token_code_bits = 0;  // of a channel in a token's code (token_code.h): 2, or 0 where
                                 // tokens have no codes
  bool packs_clusters = false;   // the tokens of a head's clusters follow each other without gaps
                                 // (segment_layout.h); else each cluster begins a page

  friend bool operator==(const KvFormat&, const KvFormat&) = default;
};

// A page: an array of keys, then an array of as many values. Unused places are zero.
struct PageLayout {
  constexpr PageLayout(const KvFormat& format, uint32_t head_dim)
      : vector_bytes(format.token.vector_bytes(head_dim)),
        tokens(static_cast<uint32_t>(format.page_vector_bytes / (2 * vector_bytes))),
        values_offset(format.token.ArrayBytes(tokens, head_dim)),
        key_scales_offset(format.token.ScalesOffset(tokens, head_dim)),
        value_scales_offset(values_offset + key_scales_offset),
        bytes(2 * values_offset) {}

  size_t vector_bytes;  // of a key or a value, its scale apart
  uint32_t tokens;      // of a full page
  size_t values_offset;
  size_t key_scales_offset;    // values_offset if there are none
  size_t value_scales_offset;  // `bytes` if there are none
  size_t bytes;                // of a page
};

// Everything as `type`: f32 or bf16.
constexpr KvFormat PlainKvFormat(KvFormatId id, DType type) {
  return {.id = id,
          .name = DTypeName(type),
          .token = {.element = type},
          .centroid = {.element = type},
          .value_sum = {.element = type},
          .prompt = type};
}

inline constexpr KvFormat kF32Kv = PlainKvFormat(KvFormatId::kF32, DType::kF32);
inline constexpr KvFormat kBf16Kv = PlainKvFormat(KvFormatId::kBf16, DType::kBf16);
// Pages of f16, an index of two other types. Not offered to users: it has no code on GPUs. It keeps
// layouts, operations and store honest about formats whose places differ.
inline constexpr KvFormat kF16Kv{.id = KvFormatId::kF16,
                                 .name = "f16",
                                 .token = {.element = DType::kF16},
                                 .centroid = {.element = DType::kBf16},
                                 .value_sum = {.element = DType::kF32},
                                 .prompt = DType::kF16};

// Eight bits of a number of the index, with a scale for each vector.
inline constexpr VectorFormat kInt8Vectors{
    .element = DType::kInt8, .scale_per = ScalePer::kVector, .scale = DType::kF16};

// Pages of bf16, the index in eight bits.
inline constexpr KvFormat kBf16Int8Kv{.id = KvFormatId::kBf16Int8,
                                      .name = "bf16_int8",
                                      .token = {.element = DType::kBf16},
                                      .centroid = kInt8Vectors,
                                      .value_sum = kInt8Vectors,
                                      .prompt = DType::kBf16};

// Eight bits of a number of keys and values: 2048 bytes hold twice the tokens of bf16.
inline constexpr VectorFormat kEightBitTokens{.element = DType::kInt8,
                                              .scale_per = ScalePer::kVectorWithin};

// Pages and index in eight bits.
inline constexpr KvFormat kInt8Kv{.id = KvFormatId::kInt8,
                                  .name = "int8",
                                  .token = kEightBitTokens,
                                  .centroid = kInt8Vectors,
                                  .value_sum = kInt8Vectors,
                                  .prompt = DType::kBf16};

// The same two with a code for each token, by which pages are chosen (decision 0085).
inline constexpr KvFormat kBf16CodedKv{.id = KvFormatId::kBf16Coded,
                                       .name = "bf16_coded",
                                       .token = {.element = DType::kBf16},
                                       .centroid = kInt8Vectors,
                                       .value_sum = kInt8Vectors,
                                       .prompt = DType::kBf16,
                                       .token_code_bits = 2};
inline constexpr KvFormat kInt8CodedKv{.id = KvFormatId::kInt8Coded,
                                       .name = "int8_coded",
                                       .token = kEightBitTokens,
                                       .centroid = kInt8Vectors,
                                       .value_sum = kInt8Vectors,
                                       .prompt = DType::kBf16,
                                       .token_code_bits = 2};

// Pages of either kind that clusters fill without gaps (decision 0105): a segment takes a sixth
// less room in eight bits, a twelfth less in bf16, and how much is known before it is built.
inline constexpr KvFormat kInt8PackedKv{.id = KvFormatId::kInt8Packed,
                                        .name = "int8_packed",
                                        .token = kEightBitTokens,
                                        .centroid = kInt8Vectors,
                                        .value_sum = kInt8Vectors,
                                        .prompt = DType::kBf16,
                                        .packs_clusters = true};
inline constexpr KvFormat kBf16PackedKv{.id = KvFormatId::kBf16Packed,
                                        .name = "bf16_packed",
                                        .token = {.element = DType::kBf16},
                                        .centroid = kInt8Vectors,
                                        .value_sum = kInt8Vectors,
                                        .prompt = DType::kBf16,
                                        .packs_clusters = true};

// All formats that there are, by number; and of each type of pages the one that has the index which
// nobody has to name.
inline constexpr KvFormat kKvFormats[] = {kF32Kv,       kBf16Kv,       kF16Kv,
                                          kBf16Int8Kv,  kInt8Kv,       kBf16CodedKv,
                                          kInt8CodedKv, kInt8PackedKv, kBf16PackedKv};
inline constexpr KvFormat kChosenKvFormats[] = {kF32Kv, kBf16Kv, kF16Kv, kInt8Kv};

// The format of a number that came from a file or another process.
//
// Returns: INVALID_ARGUMENT, with the numbers that are known, if there is none.
absl::StatusOr<KvFormat> KvFormatOfNumber(uint32_t number);

// What --kv-dtype and --index-dtype, and metrics, call a format: the types of its elements; an
// index with codes of tokens is "coded", one of clusters without gaps "packed".
constexpr std::string_view PagesName(const KvFormat& format) {
  return DTypeName(format.token.element);
}
constexpr std::string_view IndexName(const KvFormat& format) {
  if (format.packs_clusters) return "packed";
  return format.token_code_bits != 0 ? "coded" : DTypeName(format.centroid.element);
}

// The format whose pages and index are called so; `index` "auto": the chosen one with these pages.
//
// Returns: INVALID_ARGUMENT, with the names that there are, if there is none.
absl::StatusOr<KvFormat> KvFormatNamed(std::string_view pages, std::string_view index = "auto");

// The format of this number for messages: "2 (bf16)", "7 (unknown)".
std::string KvFormatText(uint32_t number);

}  // namespace retroinfer
