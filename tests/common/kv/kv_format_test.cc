#include "common/kv/kv_format.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "common/kv/kv_geometry.h"
#include "common/kv/segment_layout.h"

namespace retroinfer {
namespace {

std::string Message(const absl::StatusOr<KvFormat>& format) {
  return std::string(format.status().message());
}

TEST(KvFormatTest, NumbersAndNamesThatFilesHaveStay) {
  ASSERT_TRUE(KvFormatOfNumber(1).ok());
  EXPECT_EQ(*KvFormatOfNumber(1), kF32Kv);
  EXPECT_EQ(*KvFormatOfNumber(2), kBf16Kv);
  EXPECT_EQ(*KvFormatNamed("f32"), kF32Kv);
  EXPECT_EQ(*KvFormatNamed("bf16", "bf16"), kBf16Kv);
  EXPECT_EQ(*KvFormatNamed("bf16"), kBf16Kv);
  EXPECT_EQ(*KvFormatOfNumber(5), kInt8Kv);
  EXPECT_EQ(*KvFormatNamed("int8"), kInt8Kv);
  EXPECT_EQ(*KvFormatOfNumber(6), kBf16CodedKv);
  EXPECT_EQ(*KvFormatOfNumber(7), kInt8CodedKv);
  EXPECT_EQ(*KvFormatNamed("bf16", "coded"), kBf16CodedKv);
  EXPECT_EQ(*KvFormatNamed("int8", "coded"), kInt8CodedKv);
  EXPECT_EQ(*KvFormatNamed("int8", "packed"), kInt8PackedKv);
  EXPECT_EQ(*KvFormatNamed("bf16", "packed"), kBf16PackedKv);
}

TEST(KvFormatTest, EachFormatIsFoundByItsNumberAndItsName) {
  std::set<uint32_t> numbers;
  for (const KvFormat& format : kKvFormats) {
    SCOPED_TRACE(format.name);
    const auto number = static_cast<uint32_t>(format.id);
    EXPECT_TRUE(numbers.insert(number).second) << "two formats have this number";
    ASSERT_TRUE(KvFormatOfNumber(number).ok());
    EXPECT_EQ(*KvFormatOfNumber(number), format);
    ASSERT_TRUE(KvFormatNamed(PagesName(format), IndexName(format)).ok());
    EXPECT_EQ(*KvFormatNamed(PagesName(format), IndexName(format)), format);
    ASSERT_TRUE(KvFormatNamed(PagesName(format)).ok());
    EXPECT_EQ(PagesName(*KvFormatNamed(PagesName(format))), PagesName(format));
    for (const uint32_t head_dim : kHeadDims) {
      EXPECT_TRUE((KvGeometry{1, 1, head_dim, format}.Validate().ok()));
    }
  }
}

TEST(KvFormatTest, WhatIsNotKnownIsRefusedWithWhatIs) {
  for (const uint32_t number : {0u, 99u, UINT32_MAX}) {
    const auto format = KvFormatOfNumber(number);
    EXPECT_EQ(format.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(Message(format).find("1 (f32), 2 (bf16), 3 (f16), 4 (bf16_int8), 5 (int8)"),
              std::string::npos)
        << Message(format);
  }
  const auto named = KvFormatNamed("int3");
  EXPECT_EQ(named.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(named).find("bf16 with an index in bf16, int8, coded, packed"),
            std::string::npos)
      << Message(named);
  EXPECT_EQ(KvFormatNamed("f32", "int8").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(KvFormatNamed("int8", "bf16").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(KvFormatText(2), "2 (bf16)");
  EXPECT_EQ(KvFormatText(99), "99 (unknown)");
}

TEST(PageLayoutTest, PagesWithoutScalesBehindThemAreTwoKibibytes) {
  for (const auto& [format, head_dim, tokens] : {std::tuple{kBf16Kv, 128u, 4u},
                                                 {kBf16Kv, 64u, 8u},
                                                 {kF32Kv, 128u, 2u},
                                                 {kF32Kv, 64u, 4u},
                                                 {kInt8Kv, 128u, 8u},
                                                 {kInt8Kv, 64u, 16u},
                                                 {kBf16Kv, 256u, 2u},
                                                 {kF32Kv, 256u, 1u},
                                                 {kInt8Kv, 256u, 4u}}) {
    const PageLayout page(format, head_dim);
    EXPECT_EQ(page.tokens, tokens);
    EXPECT_EQ(page.bytes, 2048u);
    EXPECT_EQ(page.values_offset, 1024u);
    EXPECT_EQ(page.vector_bytes, 1024u / tokens);
    EXPECT_EQ(page.key_scales_offset, page.values_offset);
    EXPECT_EQ(page.value_scales_offset, page.bytes);
  }
}

// A format that no backend has code for: scales in the page, an index of other types.
constexpr KvFormat Scaled(ScalePer scale_per, size_t page_vector_bytes) {
  return {.id = static_cast<KvFormatId>(77),
          .name = "scaled",
          .token = {.element = DType::kF16, .scale_per = scale_per, .scale = DType::kF16},
          .centroid = {.element = DType::kBf16, .scale_per = ScalePer::kVector},
          .value_sum = {.element = DType::kF32},
          .prompt = DType::kF16,
          .page_vector_bytes = page_vector_bytes};
}

TEST(PageLayoutTest, ScalesFollowTheVectorsThatTheyScale) {
  const PageLayout each(Scaled(ScalePer::kVector, 2048), 128);
  EXPECT_EQ(each.tokens, 4u);
  EXPECT_EQ(each.key_scales_offset, 1024u);
  EXPECT_EQ(each.values_offset, 1024u + 16) << "four scales of two bytes, padded";
  EXPECT_EQ(each.value_scales_offset, 1024u + 16 + 1024);
  EXPECT_EQ(each.bytes, 2048u + 32);
  const PageLayout one(Scaled(ScalePer::kArray, 4096), 64);
  EXPECT_EQ(one.tokens, 16u);
  EXPECT_EQ(one.bytes, 4096u + 32);
}

TEST(PageLayoutTest, GeometryAndSegmentFollowTheFormat) {
  const KvGeometry geometry{2, 3, 128, Scaled(ScalePer::kVector, 4096)};
  EXPECT_TRUE(geometry.Validate().ok()) << geometry.Validate();
  EXPECT_EQ(geometry.tokens_per_page(), 8u);
  EXPECT_EQ(geometry.page_bytes(), 4096u + 32);
  EXPECT_EQ(geometry.token_bytes(), 2u * 3 * (4096 + 32) / 8);
  EXPECT_EQ(geometry.prompt_vector_bytes(), 256u);
  const SegmentLayout layout(geometry, 1024);
  EXPECT_EQ(layout.clusters_offset, geometry.page_bytes());
  EXPECT_EQ(layout.value_sums_offset - layout.centroids_offset, 6u * (64 * 256 + 64 * 4))
      << "64 centroids of bf16 with a scale each";
  EXPECT_EQ(layout.order_offset - layout.value_sums_offset, 6u * 64 * 512);
  EXPECT_GE(layout.first_kv_page * layout.page_bytes, layout.index_end);
  EXPECT_LT((layout.first_kv_page - 1) * layout.page_bytes, layout.index_end);
}

TEST(SegmentLayoutTest, CodesLieBehindTheOrderTable) {
  for (const auto& [coded, plain] :
       {std::pair{kBf16CodedKv, kBf16Int8Kv}, std::pair{kInt8CodedKv, kInt8Kv}}) {
    for (const uint32_t head_dim : kHeadDims) {
      const SegmentLayout with(KvGeometry{2, 3, head_dim, coded}, 8192);
      const SegmentLayout without(KvGeometry{2, 3, head_dim, plain}, 8192);
      EXPECT_EQ(with.order_offset, without.order_offset);
      EXPECT_EQ(with.codes_offset, without.index_end);
      EXPECT_EQ(with.codes_bytes, 8 * 1024u * (head_dim / 4 + 4));
      EXPECT_EQ(with.index_end, with.codes_offset + 6 * with.codes_bytes);
      EXPECT_EQ(without.codes_bytes, 0u);
      EXPECT_EQ(without.codes_offset, without.index_end);
      EXPECT_EQ(with.codes_offset % 16, 0u);
    }
  }
}

TEST(TokenCodeTest, ACodeIsTwoBitsAChannelAndTwoFactors) {
  const TokenCodeLayout layout(kBf16CodedKv, 128);
  EXPECT_EQ(layout.code_bytes, 32u);
  EXPECT_EQ(layout.factors_offset, 32u * 1024);
  EXPECT_EQ(layout.bytes, 36u * 1024);
  EXPECT_EQ(TokenCodeBytes(kBf16CodedKv, 128), 36u);
  EXPECT_EQ(TokenCodeLayout(kBf16Kv, 128).bytes, 0u);
  EXPECT_EQ(TokenCodeBytes(kBf16Kv, 128), 0u);
}

// Stored codes depend on these.
TEST(TokenCodeTest, LevelsAndSignsStay) {
  EXPECT_EQ(CodeLevel(0), -10);
  EXPECT_EQ(CodeLevel(1), -3);
  EXPECT_EQ(CodeLevel(2), 3);
  EXPECT_EQ(CodeLevel(3), 10);
  for (const bool is_large : {false, true}) {
    for (const bool is_negative : {false, true}) {
      EXPECT_EQ(CodeLevel(CodeOfLevel(is_large, is_negative)),
                (is_negative ? -1 : 1) * (is_large ? 10 : 3));
    }
  }
  EXPECT_EQ(TurnedSigns(0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(TurnedSigns(1), 0x6e789e6aa1b965f4u);
  EXPECT_TRUE(TurnsSign(0));
  EXPECT_FALSE(TurnsSign(64));
}

TEST(TokenCodeTest, OtherHeadSizesAreRefusedByName) {
  const absl::Status status = KvGeometry{1, 1, 96, kBf16CodedKv}.Validate();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const char* part : {"96", "bf16_coded", "power of two"}) {
    EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status;
  }
}

TEST(SegmentLayoutTest, AnIndexInInt8HasItsScalesBehindEach64Vectors) {
  const KvGeometry geometry{2, 3, 128, kBf16Int8Kv};
  EXPECT_EQ(geometry.page_bytes(), 2048u);
  EXPECT_EQ(geometry.tokens_per_page(), 4u);
  const SegmentLayout layout(geometry, 8192);
  EXPECT_EQ(layout.centroids_bytes, 8u * (64 * 128 + 64 * 2));
  EXPECT_EQ(layout.value_sums_bytes, layout.centroids_bytes);
  EXPECT_EQ(layout.value_sums_offset - layout.centroids_offset, 6 * layout.centroids_bytes);
}

}  // namespace
}  // namespace retroinfer
