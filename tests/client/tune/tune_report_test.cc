#include "client/tune/tune_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TuneReportTest, EachLengthHasALine) {
  common::RetrievalFile file;
  file.budgets = {{.chosen = {.context = 16384,
                              .ratio = 0.035,
                              .change = 0.041,
                              .change_error = 0.004,
                              .perplexity = 0.002,
                              .perplexity_error = 0.001,
                              .agreement = 0.961},
                   .meets_target = true}};
  EXPECT_THAT(DescribeMeasured(file.budgets[0].chosen),
              HasSubstr("16,384 tokens, ratio 0.035: change 0.041 +- 0.004, perplexity +0.20 % +- "
                        "0.10 %, same likeliest token 96.1 %"));
  const std::string table = TuneTable(file, {.change = 0.05});
  EXPECT_THAT(table, HasSubstr("log-probability at most 0.05"));
  EXPECT_THAT(table, HasSubstr("16,384     3.5%     0.041 +- 0.004"));
  EXPECT_THAT(table, Not(HasSubstr("misses")));
  file.budgets[0].meets_target = false;
  EXPECT_THAT(TuneTable(file, {.change = std::nullopt, .perplexity = 0.005}),
              testing::AllOf(HasSubstr("perplexity at most 0.5 % above"), HasSubstr("misses the"),
                             HasSubstr("Policy full is exact")));
}

}  // namespace
}  // namespace retroinfer::client
