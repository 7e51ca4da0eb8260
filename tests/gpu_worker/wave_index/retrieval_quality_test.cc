#include "gpu_worker/wave_index/retrieval_quality.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "common/kv/token_code.h"

namespace retroinfer {
namespace {

// Pages, and half a page for a cluster's end, in bytes of one KV head and head_dim 128, that are
// read of a context of `tokens`, and what all clusters' centroids and a quarter of the sums take.
double BytesRead(RetrievalQuality quality, const KvFormat& format, double tokens) {
  constexpr uint32_t kHeadDim = 128;
  constexpr double kTokensPerCluster = 16;
  const RetrievalShare share = RetrievalFor(quality, format);
  const double clusters = tokens / kTokensPerCluster;
  const double retrieved =
      std::max(clusters * share.ratio, static_cast<double>(share.min_retrieved));
  const double token_bytes = 2.0 * static_cast<double>(format.token.vector_bytes(kHeadDim));
  const auto index_bytes = static_cast<double>(format.centroid.vector_bytes(kHeadDim));
  return retrieved * (kTokensPerCluster * token_bytes + 1024) + clusters * 1.25 * index_bytes;
}

TEST(RetrievalQualityTest, Names) {
  EXPECT_EQ(RetrievalQualityNamed("standard"), RetrievalQuality::kStandard);
  EXPECT_EQ(RetrievalQualityNamed("high"), RetrievalQuality::kHigh);
  EXPECT_EQ(RetrievalQualityNamed("High"), std::nullopt);
  EXPECT_EQ(RetrievalQualityNamed(""), std::nullopt);
}

// Of a format with codes: full pages, the candidates' codes and sums, and all centroids.
double CodedBytesRead(RetrievalQuality quality, const KvFormat& format, double tokens) {
  constexpr uint32_t kHeadDim = 128;
  constexpr double kTokensPerCluster = 16;
  const RetrievalShare share = RetrievalFor(quality, format);
  const double clusters = tokens / kTokensPerCluster;
  const double retrieved = std::max(share.ratio * tokens, kTokensPerCluster * share.min_retrieved);
  const double candidates =
      std::max(share.candidate_ratio * clusters, static_cast<double>(share.min_candidates));
  const double token_bytes = 2.0 * static_cast<double>(format.token.vector_bytes(kHeadDim));
  const auto index_bytes = static_cast<double>(format.centroid.vector_bytes(kHeadDim));
  return retrieved * token_bytes + (clusters * 1.232 + candidates) * index_bytes +
         candidates * kTokensPerCluster * static_cast<double>(TokenCodeBytes(format, kHeadDim));
}

TEST(RetrievalQualityTest, CodesReadAboutAsMuchAsTheSameQualityWithout) {
  for (const double tokens : {32'768.0, 122'880.0, 1'048'576.0}) {
    for (const RetrievalQuality quality : {RetrievalQuality::kStandard, RetrievalQuality::kHigh}) {
      for (const auto& [coded, plain] :
           {std::pair{kBf16CodedKv, kBf16Int8Kv}, std::pair{kInt8CodedKv, kInt8Kv}}) {
        EXPECT_LT(CodedBytesRead(quality, coded, tokens), 1.15 * BytesRead(quality, plain, tokens))
            << coded.name << ", " << tokens << (quality == RetrievalQuality::kHigh ? ", high" : "");
      }
    }
  }
}

TEST(RetrievalQualityTest, HighReadsMoreAndAtMostTwiceWhatTheStandardOfBf16Reads) {
  for (const double tokens : {32'768.0, 122'880.0, 1'048'576.0}) {
    const double standard = BytesRead(RetrievalQuality::kStandard, kBf16Kv, tokens);
    for (const KvFormat& format : {kBf16Kv, kBf16Int8Kv, kInt8Kv}) {
      EXPECT_LE(BytesRead(RetrievalQuality::kStandard, format, tokens), 1.05 * standard)
          << format.name << ", " << tokens;
      EXPECT_GT(BytesRead(RetrievalQuality::kHigh, format, tokens),
                1.4 * BytesRead(RetrievalQuality::kStandard, format, tokens))
          << format.name << ", " << tokens;
      EXPECT_LE(BytesRead(RetrievalQuality::kHigh, format, tokens), 2.05 * standard)
          << format.name << ", " << tokens;
    }
  }
}

}  // namespace
}  // namespace retroinfer
