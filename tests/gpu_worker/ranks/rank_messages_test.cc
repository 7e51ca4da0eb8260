#include "gpu_worker/ranks/rank_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace retroinfer {
namespace {

constexpr CodecLimits kLimits{.vocab_size = 100, .max_model_len = 1000, .max_sequences = 8};

TEST(RankMessagesTest, HelloMemoryAndReadyComeBack) {
  const RankHello hello{.version = "1",
                        .revision = "abc",
                        .rank = 2,
                        .num_ranks = 4,
                        .fingerprint = std::string("\0\xff", 2),
                        .backend = "cuda",
                        .device_name = "card",
                        .available_bytes = uint64_t{1} << 40,
                        .weight_bytes = 7};
  const auto back = DecodeHello(EncodeHello(hello));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(EncodeHello(*back), EncodeHello(hello));
  EXPECT_EQ(back->fingerprint, hello.fingerprint);
  EXPECT_EQ(back->num_ranks, 4u);
  EXPECT_EQ(back->device_name, "card");
  const auto memory = DecodeSharedPlan(EncodeSharedPlan(
      {.available_bytes = 5, .weight_bytes = 6, .arena_pages = 7, .draft_weight_bytes = 8}));
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->available_bytes, 5u);
  EXPECT_EQ(memory->weight_bytes, 6u);
  EXPECT_EQ(memory->arena_pages, 7u);
  EXPECT_EQ(memory->draft_weight_bytes, 8u);
  EXPECT_EQ(DecodeReady(EncodeReady("a plan")).value(), "a plan");
  EXPECT_FALSE(DecodeReady(EncodeReady(std::string(100000, 'p'))).ok());
  EXPECT_FALSE(DecodeHello(EncodeHello({.version = std::string(100000, 'v')})).ok());
}

TEST(RankMessagesTest, AFailureIsThatFailure) {
  const absl::Status failure = DecodeFailure(EncodeFailure(absl::DataLossError("a file was cut")));
  EXPECT_EQ(failure, absl::DataLossError("a file was cut"));
  EXPECT_EQ(DecodeFailure(EncodeFailure(absl::OkStatus())).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DecodeFailure("\xff\xff").code(), absl::StatusCode::kInvalidArgument);
}

TEST(RankMessagesTest, ACommandComesWithWhatIsTakenBack) {
  StepCommand command;
  command.rows.push_back({.id = 3, .token = 5, .position = 9});
  const std::string encoded = EncodeCommand(command, Drawing::kElsewhere).value();
  const auto back = DecodeRankCommand(
      EncodeRankCommand({{.id = 3, .num_rows = 2}, {.id = 4, .num_rows = 1}}, encoded), kLimits);
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_EQ(back->taken_back.size(), 2u);
  EXPECT_EQ(back->taken_back[0].id, 3u);
  EXPECT_EQ(back->taken_back[0].num_rows, 2);
  EXPECT_EQ(EncodeCommand(back->command).value(), encoded);
  const std::vector<TakenBack> too_many(9, TakenBack{.id = 1, .num_rows = 1});
  EXPECT_FALSE(DecodeRankCommand(EncodeRankCommand(too_many, encoded), kLimits).ok());
  command.rows[0].token = 100;  // not of the vocabulary
  EXPECT_FALSE(
      DecodeRankCommand(EncodeRankCommand({}, EncodeCommand(command).value()), kLimits).ok());
}

TEST(RankMessagesTest, AnAnswerIsWithoutWhatWasDrawn) {
  RankAnswer answer;
  answer.result.failed.push_back({7, absl::InternalError("why")});
  answer.result.progress.push_back({.id = 1, .processed_tokens = 50});
  answer.result.finished = {4};
  CommandResult::Read& read = answer.result.read.emplace_back();
  read.id = 2;
  read.end = CommandResult::Read::End::kPrompt;
  read.num_tokens = 10;
  read.measured = {{.token = 1}, {.token = 99}};
  CommandResult::Row& row = answer.result.rows.emplace_back();
  row.drawn.token.token = 12345;  // nobody looks
  answer.written = {{.holder = 1, .extent_id = 2}};
  answer.stats = {.page_hits = 1,
                  .page_misses = 2,
                  .page_transients = 3,
                  .page_evictions = 4,
                  .arena_bytes_in = 5,
                  .arena_bytes_out = 6,
                  .slots_used = 7,
                  .device_bytes = 8};
  const auto back = DecodeAnswer(EncodeAnswer(answer), kLimits);
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_NE(back->result.FailureOf(7), nullptr);
  EXPECT_EQ(*back->result.FailureOf(7), absl::InternalError("why"));
  EXPECT_EQ(back->result.progress[0].processed_tokens, 50);
  EXPECT_EQ(back->result.finished, std::vector<uint64_t>{4});
  ASSERT_EQ(back->result.read.size(), 1u);
  EXPECT_EQ(back->result.read[0].end, CommandResult::Read::End::kPrompt);
  EXPECT_EQ(back->result.read[0].num_tokens, 10);
  EXPECT_TRUE(back->result.rows.empty());
  ASSERT_EQ(back->written.size(), 1u);
  EXPECT_EQ(back->written[0].extent_id, 2u);
  EXPECT_EQ(back->stats.page_evictions, 4u);
  EXPECT_EQ(back->stats.slots_used, 7);
  EXPECT_EQ(back->stats.device_bytes, 8u);
}

// Whatever bytes come: an error or a message, and no more.
TEST(RankMessagesTest, NoBytesDoHarm) {
  RankAnswer answer;
  answer.written.resize(20, {.holder = 1, .extent_id = 2});
  answer.result.finished = {4, 5, 6};
  const std::string real[] = {EncodeAnswer(answer), EncodeHello({.version = "1"}),
                              EncodeRankCommand({{.id = 3, .num_rows = 2}}, "")};
  std::mt19937_64 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = real[i % 3];
    bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    if (i % 2 == 0) bytes.resize(random() % (bytes.size() + 1));
    (void)DecodeAnswer(bytes, kLimits).ok();
    (void)DecodeHello(bytes).ok();
    (void)DecodeSharedPlan(bytes).ok();
    (void)DecodeReady(bytes).ok();
    (void)DecodeRankCommand(bytes, kLimits).ok();
    EXPECT_FALSE(DecodeFailure(bytes).ok());
  }
}

}  // namespace
}  // namespace retroinfer
