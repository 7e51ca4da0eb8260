#include "gpu_worker/assembly/retrieval_subject.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer {
namespace {

using ::testing::HasSubstr;

TEST(RetrievalSubjectTest, BudgetsOfThisServerAreTakenAndThoseOfOthersRefusedWithTheFile) {
  ServedEngineOptions options;
  Fingerprint model{};
  const common::RetrievalSubject subject = RetrievalSubjectOf(options, kBf16Kv, "name", model);
  EXPECT_EQ(subject.kv_dtype, "bf16");
  EXPECT_EQ(subject.wave_index, "tuned");
  EXPECT_EQ(subject.quality, "standard");
  EXPECT_EQ(subject.fingerprint.size(), 64u);
  EXPECT_TRUE(CheckRetrieval(options, subject).ok()) << "no file, nothing to check";

  options.retrieval.emplace().subject = subject;
  options.retrieval_path = "retrieval.toml";
  EXPECT_TRUE(CheckRetrieval(options, subject).ok());
  model[0] = decltype(model)::value_type{1};
  const absl::Status other =
      CheckRetrieval(options, RetrievalSubjectOf(options, kBf16Kv, "name", model));
  EXPECT_TRUE(absl::IsInvalidArgument(other)) << other;
  EXPECT_THAT(other.message(),
              HasSubstr("--retrieval retrieval.toml: it was measured with another"));
  EXPECT_THAT(other.message(), HasSubstr("--retrieval none"));
  options.quality = RetrievalQuality::kHigh;
  EXPECT_FALSE(CheckRetrieval(options, RetrievalSubjectOf(options, kBf16Kv, "name", {})).ok());
}

}  // namespace
}  // namespace retroinfer
