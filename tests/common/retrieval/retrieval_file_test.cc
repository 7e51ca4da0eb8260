#include "common/retrieval/retrieval_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace retroinfer::common {
namespace {

using ::testing::HasSubstr;

RetrievalFile Example() {
  RetrievalFile file;
  file.subject = {.model_name = "qwen \"coder\"",
                  .fingerprint = std::string(60, 'a') + "0123",
                  .kv_dtype = "bf16",
                  .index_dtype = "int8",
                  .wave_index = "tuned",
                  .quality = "standard"};
  file.target_change = 0.05;
  file.texts = {"a b.txt", "c.txt"};
  const MeasuredRatio measured{.context = 8192,
                               .ratio = 0.07,
                               .windows = 3,
                               .tokens = 768,
                               .change = 0.041,
                               .change_error = 0.004,
                               .perplexity = -0.002,
                               .perplexity_error = 0.001,
                               .agreement = 0.96};
  file.budgets = {{measured, true}, {measured, false}};
  file.budgets[1].chosen.context = 16384;
  file.budgets[1].chosen.ratio = 0.035;
  file.measured = {measured};
  return file;
}

absl::Status StatusOf(const std::string& text) { return ParseRetrievalFile(text).status(); }

TEST(RetrievalFileTest, WhatIsWrittenIsRead) {
  const std::string text = FormatRetrievalFile(Example());
  const auto file = ParseRetrievalFile(text);
  ASSERT_TRUE(file.ok()) << file.status() << "\n" << text;
  EXPECT_EQ(FormatRetrievalFile(*file), text);
  EXPECT_EQ(file->subject.model_name, "qwen \"coder\"");
  EXPECT_EQ(file->target_change, 0.05);
  EXPECT_FALSE(file->target_perplexity.has_value());
  ASSERT_EQ(file->budgets.size(), 2u);
  EXPECT_EQ(file->budgets[0].chosen.perplexity, -0.002);
  EXPECT_TRUE(file->budgets[0].meets_target);
  EXPECT_FALSE(file->budgets[1].meets_target);
  EXPECT_EQ(file->measured.size(), 1u);
}

TEST(RetrievalFileTest, AContextGetsTheRatioOfTheNextLongerOneThatWasMeasured) {
  const RetrievalFile file = Example();
  EXPECT_EQ(file.RatioFor(1), 0.07);
  EXPECT_EQ(file.RatioFor(8192), 0.07);
  EXPECT_EQ(file.RatioFor(8193), 0.035);
  EXPECT_EQ(file.RatioFor(1 << 20), 0.035) << "nothing longer was measured";
  EXPECT_EQ(DescribeBudgets(file),
            "7 % up to 8,192 tokens, 3.5 % up to 16,384 tokens (misses the target)");
}

TEST(RetrievalFileTest, WhatIsWrongIsRefusedWithItsLine) {
  const std::string good = FormatRetrievalFile(Example());
  const auto with = [&](const std::string& from, const std::string& to) {
    EXPECT_THAT(good, HasSubstr(from));
    return StatusOf(absl::StrReplaceAll(good, {{from, to}}));
  };
  EXPECT_THAT(with("version = 1", "version = 2").message(), HasSubstr("line 3: version"));
  EXPECT_THAT(with("retrieval_ratio = 0.070000", "retrieval_ratio = 1.5").message(),
              HasSubstr("retrieval_ratio must be a number from 1e-06 to 1"));
  EXPECT_FALSE(with("retrieval_ratio = 0.070000", "retrieval_ratio = nan").ok());
  EXPECT_FALSE(with("retrieval_ratio = 0.070000", "retrieval_ratio = \"0.07\"").ok());
  EXPECT_THAT(with("context = 16384", "context = 8192").message(), HasSubstr("must be longer"));
  EXPECT_THAT(with("[target]\n", "[target]\nperplexity = 0.1\n").message(), HasSubstr("one of"));
  EXPECT_THAT(with("quality =", "qualities =").message(), HasSubstr("[model] has no quality"));
  EXPECT_THAT(with("[target]\n", "[target]\nnoise = 1\n").message(),
              HasSubstr("noise is not a key of [target]"));
  EXPECT_THAT(with("0123\"", "012\"").message(), HasSubstr("64 hexadecimal digits"));
  EXPECT_THAT(with("[[budget]]", "[[other]]").message(), HasSubstr("no [[budget]]"));
  EXPECT_FALSE(StatusOf("").ok());
  EXPECT_FALSE(StatusOf("version = 1").ok());
  EXPECT_FALSE(StatusOf("version = 1\n[model]\n[target]\n").ok());
  EXPECT_FALSE(StatusOf(std::string("version = 1\n\0", 13)).ok());
  for (size_t cut = 0; cut < good.size(); cut += 7) {
    const auto file = ParseRetrievalFile(good.substr(0, cut));
    if (!file.ok()) continue;
    EXPECT_GE(file->budgets.size(), 1u) << cut;
  }
}

TEST(RetrievalFileTest, AnotherModelOrAnotherFormIsRefusedByName) {
  const RetrievalSubject subject = Example().subject;
  EXPECT_TRUE(CheckSubject(subject, subject).ok());
  RetrievalSubject other = subject;
  other.fingerprint[0] = '7';
  EXPECT_THAT(CheckSubject(subject, other).message(), HasSubstr("another model"));
  other = subject;
  other.index_dtype = "bf16";
  EXPECT_THAT(CheckSubject(subject, other).message(),
              HasSubstr("--index-dtype int8, the server has bf16"));
  other = subject;
  other.quality = "high";
  EXPECT_THAT(CheckSubject(subject, other).message(), HasSubstr("--quality standard"));
  other = subject;
  other.model_name = "another name of the same";
  EXPECT_TRUE(CheckSubject(subject, other).ok());
}

TEST(RetrievalFileTest, AFileThatIsNotThereIsNamed) {
  const auto file = ReadRetrievalFile("/nowhere/retrieval.toml");
  EXPECT_TRUE(absl::IsNotFound(file.status())) << file.status();
  EXPECT_THAT(file.status().message(), HasSubstr("/nowhere/retrieval.toml"));
}

}  // namespace
}  // namespace retroinfer::common
