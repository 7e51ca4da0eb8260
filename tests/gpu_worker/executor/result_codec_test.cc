#include "gpu_worker/executor/result_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "retroinfer/executor/v1/step.pb.h"

namespace retroinfer {
namespace {

namespace wire = executor::v1;

constexpr CodecLimits kLimits{
    .vocab_size = 1000, .max_model_len = 4096, .max_sequences = 4, .max_bytes = 1 << 16};

OutputToken Token(int32_t token) {
  return {.token = token, .logprob = -0.5f, .alternatives = {{1, -0.25f}, {2, -4}}, .rank = 3};
}

CommandResult Full() {
  CommandResult result;
  result.refused = absl::FailedPreconditionError("of another stage");
  result.without_memory = {1};
  result.failed.push_back({2, absl::ResourceExhaustedError("no memory")});
  result.progress.push_back({3, 100});
  result.read.push_back({.id = 4, .end = CommandResult::Read::End::kPartInOrder, .num_tokens = 68});
  CommandResult::Read& drawn = result.read.emplace_back();
  drawn = {.id = 5, .end = CommandResult::Read::End::kPrompt, .num_tokens = 70, .first = {}};
  drawn.first = {Token(7), absl::InternalError("no such token"), true};
  CommandResult::Read& measured = result.read.emplace_back();
  measured = {.id = 6, .end = CommandResult::Read::End::kPrompt, .first = {}, .measured = {}};
  measured.measured = {Token(8), Token(9)};
  result.measured.push_back({7, {Token(10)}});
  result.finished = {8};
  result.unsaved.push_back({9, absl::UnavailableError("gone")});
  CommandResult::Row& row = result.rows.emplace_back();
  row = {.id = 10, .drawn = {.token = Token(11), .allowed = {}}, .bytes = {1, 2}, .unseen = 0.5};
  result.rows.push_back(
      {.id = 11, .drawn = {.token = Token(12), .allowed = {}}, .is_rejected = true});
  result.rows.push_back({.id = 12, .drawn = {}, .bytes = {3, 4}, .is_given = true});
  result.read.push_back({.id = 13, .end = CommandResult::Read::End::kHead, .num_tokens = 132});
  result.step = absl::DataLossError("a step");
  return result;
}

TEST(ResultCodecTest, AResultComesBackAsItWas) {
  const std::string bytes = EncodeResult(Full());
  const absl::StatusOr<CommandResult> result = DecodeResult(bytes, kLimits);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(EncodeResult(*result), bytes);
  EXPECT_EQ(result->refused, Full().refused);
  EXPECT_EQ(result->failed.at(0).status, Full().failed[0].status);
  EXPECT_EQ(result->read.at(1).first.token.alternatives.at(1).token, 2);
  EXPECT_EQ(result->read.at(1).first.allowed, Full().read[1].first.allowed);
  EXPECT_TRUE(result->read.at(1).first.must_end);
  EXPECT_EQ(result->read.at(2).measured.at(1).token, 9);
  EXPECT_EQ(result->rows.at(0).unseen, 0.5);
  EXPECT_FALSE(result->rows.at(1).unseen.has_value());
  EXPECT_FALSE(result->rows.at(0).is_rejected);
  EXPECT_TRUE(result->rows.at(1).is_rejected);
  EXPECT_FALSE(result->rows.at(1).is_given);
  EXPECT_TRUE(result->rows.at(2).is_given);
  EXPECT_EQ(result->read.at(3).end, CommandResult::Read::End::kHead);
  EXPECT_EQ(result->step, Full().step);
}

TEST(ResultCodecTest, ValuesThatCannotBeAreRefused) {
  wire::CommandResult good;
  ASSERT_TRUE(good.ParseFromString(EncodeResult(Full())));
  const auto expect_refused = [&good](const auto& change) {
    wire::CommandResult changed = good;
    change(changed);
    EXPECT_TRUE(
        absl::IsInvalidArgument(DecodeResult(changed.SerializeAsString(), kLimits).status()));
  };
  using Result = wire::CommandResult;
  expect_refused([](Result& r) { r.mutable_refused()->set_code(17); });
  expect_refused([](Result& r) { r.mutable_failed(0)->mutable_status()->set_code(0); });
  expect_refused([](Result& r) { r.mutable_progress(0)->set_processed_tokens(4097); });
  expect_refused([](Result& r) { r.mutable_read(0)->set_end(4); });
  expect_refused([](Result& r) { r.mutable_read(0)->set_end(2); });  // no token behind it
  expect_refused([](Result& r) { r.mutable_read(1)->set_end(0); });
  expect_refused([](Result& r) { r.mutable_read(2)->mutable_measured(0)->set_token(1000); });
  expect_refused([](Result& r) { r.mutable_rows(0)->set_unseen(std::nan("")); });
  expect_refused([](Result& r) { r.mutable_rows(0)->set_bytes_read(-1); });
  expect_refused([](Result& r) { r.mutable_rows(0)->set_is_given(true); });  // with a token
  expect_refused([](Result& r) { r.mutable_rows(0)->clear_drawn(); });
  expect_refused([](Result& r) {
    r.mutable_rows(0)->mutable_drawn()->mutable_token()->mutable_alternatives(0)->set_token(-1);
  });
  expect_refused([](Result& r) {
    for (uint64_t i = 0; i < 5; ++i) r.add_finished(i);
  });
  std::mt19937_64 random(3);
  const std::string bytes = EncodeResult(Full());
  for (int i = 0; i < 20000; ++i) {
    std::string changed = bytes;
    changed[random() % changed.size()] = static_cast<char>(random());
    const absl::StatusOr<CommandResult> result = DecodeResult(changed, kLimits);
    if (!result.ok()) continue;
    for (const CommandResult::Row& row : result->rows) {
      ASSERT_TRUE(row.drawn.token.token >= 0 && row.drawn.token.token < 1000);
    }
  }
}

}  // namespace
}  // namespace retroinfer
