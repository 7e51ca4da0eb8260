// What is encoded comes back as it was, and what cannot be is refused.
#include "gpu_worker/executor/command_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "retroinfer/executor/v1/step.pb.h"

namespace retroinfer {
namespace {

namespace wire = executor::v1;

constexpr CodecLimits kLimits{
    .vocab_size = 1000, .max_model_len = 4096, .max_sequences = 16, .max_bytes = 1 << 16};

Extent ExtentOf(uint64_t id) {
  Extent extent{.id = id, .first_page = 7, .num_pages = 9, .num_tokens = 1024, .cached = true};
  common::SegmentName name;
  name.bytes.fill(static_cast<uint8_t>(id));
  extent.generated = name;
  return extent;
}

// Each list has an entry, each field a value of its own.
StepCommand Full() {
  StepCommand command;
  StepCommand::Open& open = command.open.emplace_back();
  open = {.id = 1,
          .prompt = {1, 2, 999},
          .given_tokens = 2,
          .total_tokens = 40,
          .attention = {},
          .sampling = {}};
  open.attention = {.policy = PolicyKind::kStreaming,
                    .prefill = PrefillKind::kSparse,
                    .tail_run = 16,
                    .retrieval_ratio = 0.25,
                    .estimation_ratio = 0.5,
                    .ranking = GroupRanking::kSumOfSoftmax,
                    .max_unseen_mass = 0.125,
                    .streaming_window = 128};
  open.sampling.temperature = 0.5f;
  open.sampling.top_p = 0.75f;
  open.sampling.top_k = 3;
  open.sampling.min_p = 0.125f;
  open.sampling.repetition_penalty = 1.5f;
  open.sampling.frequency_penalty = -1;
  open.sampling.presence_penalty = 2;
  open.sampling.max_tokens = 37;
  open.sampling.min_tokens = 4;
  open.sampling.stop_token_ids = {8, 9};
  open.sampling.ignore_eos = true;
  open.sampling.seed = ~uint64_t{0};
  open.sampling.num_logprobs = 20;
  open.sampling.logit_bias = {{5, -100.0f}, {6, 100.0f}};
  open.eos_token_ids = {10};
  open.is_prompt_only = true;
  open.num_prompt_logprobs = 2;
  open.first_targets = {11, 12};
  command.drop = {2};
  command.let_go = {3};
  command.claim = {{.id = 4,
                    .extents = {ExtentOf(1), ExtentOf(2)},
                    .num_cached_segments = 1,
                    .cached = {{.extent = ExtentOf(1), .name = {}, .token_begin = 4}}}};
  command.put_back = {5};
  command.leave = {6};
  command.rejoin = {7};
  command.rewind = {8};
  command.give_back = {{9, {.dense = 3}}};
  command.lengthen = {{.id = 10,
                       .total_tokens = 4096,
                       .extents = {ExtentOf(3)},
                       .growths = {{.first = 1, .holder = 77}}}};
  command.suspend = {11};
  command.grow = {{12, {.dense = 1, .meta = 2}}};
  command.resume = {{13, {.dense = 3, .meta = 4}}};
  command.admit = {{14, {.dense = 5, .meta = 6}}};
  command.begin = {{.lane = 1, .members = {15, 16}}};
  command.passes = {{.lane = 1, .layer = 2, .first_row = 3, .num_rows = 4, .work = {}}};
  command.measure = {{.lane = 1, .num_rows = 5}};
  command.finish = {17};
  command.save = {{.id = 18,
                   .save_id = uint64_t{1} << 62,
                   .blocks = {{.token_begin = 68, .num_tokens = 20, .extent = ExtentOf(4)}}}};
  command.end_save = {uint64_t{1} << 63};
  command.rows = {{.id = 19, .token = 3, .position = 40, .target = -1},
                  {.id = 20, .token = 4, .position = 41, .target = 5}};
  return command;
}

absl::Status Decoded(const wire::StepCommand& command) {
  return DecodeCommand(command.SerializeAsString(), kLimits).status();
}

TEST(CommandCodecTest, ACommandComesBackAsItWas) {
  const std::string bytes = EncodeCommand(Full()).value();
  const absl::StatusOr<StepCommand> command = DecodeCommand(bytes, kLimits);
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(EncodeCommand(*command).value(), bytes);
  const StepCommand::Open& open = command->open.at(0);
  EXPECT_EQ(open.prompt, (std::vector<int32_t>{1, 2, 999}));
  EXPECT_EQ(open.attention.policy, PolicyKind::kStreaming);
  EXPECT_EQ(open.attention.tail_run, 16);
  EXPECT_EQ(open.sampling.seed, ~uint64_t{0});
  EXPECT_EQ(open.sampling.logit_bias.at(5), -100.0f);
  EXPECT_EQ(open.first_targets, (std::vector<int32_t>{11, 12}));
  EXPECT_EQ(command->claim.at(0).cached.at(0).extent.generated, ExtentOf(1).generated);
  EXPECT_EQ(command->lengthen.at(0).growths.at(0).holder, 77u);
  EXPECT_EQ(command->admit.at(0).blocks, (KvBlocks{.dense = 5, .meta = 6}));
  EXPECT_EQ(command->begin, Full().begin);
  EXPECT_EQ(command->passes, Full().passes);
  EXPECT_EQ(command->measure, Full().measure);
  EXPECT_EQ(command->save.at(0).blocks.at(0).num_tokens, 20u);
  EXPECT_EQ(command->rows.at(1).target, 5);
  EXPECT_FALSE(command->empty());
  EXPECT_TRUE(DecodeCommand("", kLimits)->empty());
}

TEST(CommandCodecTest, ASequenceWithAConstraintIsNotSent) {
  StepCommand command = Full();
  // Only that there is one counts.
  command.open[0].sampling.constraint = std::shared_ptr<const constraint::Constraint>(
      std::shared_ptr<void>(), reinterpret_cast<const constraint::Constraint*>(&command));
  EXPECT_TRUE(absl::IsUnimplemented(EncodeCommand(command).status()));
}

// An executor that does not draw is told all but how.
TEST(CommandCodecTest, HowTokensAreDrawnIsNotSentToWhoDoesNotDraw) {
  StepCommand command = Full();
  const auto plain = DecodeCommand(EncodeCommand(command, Drawing::kElsewhere).value(), kLimits);
  ASSERT_TRUE(plain.ok()) << plain.status();
  ASSERT_EQ(plain->open.size(), command.open.size());
  EXPECT_EQ(plain->open[0].prompt, command.open[0].prompt);
  EXPECT_EQ(plain->open[0].first_targets, command.open[0].first_targets);
  EXPECT_EQ(plain->open[0].sampling.temperature, 0);
  EXPECT_TRUE(plain->open[0].sampling.logit_bias.empty());
  EXPECT_EQ(plain->rows.size(), command.rows.size());
  command.open[0].sampling.constraint = std::shared_ptr<const constraint::Constraint>(
      std::shared_ptr<void>(), reinterpret_cast<const constraint::Constraint*>(&command));
  EXPECT_EQ(EncodeCommand(command, Drawing::kElsewhere).value(),
            EncodeCommand(*plain, Drawing::kElsewhere).value());
}

TEST(CommandCodecTest, ValuesThatCannotBeAreRefused) {
  wire::StepCommand good;
  ASSERT_TRUE(good.ParseFromString(EncodeCommand(Full()).value()));
  ASSERT_TRUE(Decoded(good).ok());
  const auto expect_refused = [&good](const auto& change) {
    wire::StepCommand changed = good;
    change(changed);
    EXPECT_TRUE(absl::IsInvalidArgument(Decoded(changed))) << changed.ShortDebugString();
  };
  const double nan = std::nan("");
  using Command = wire::StepCommand;
  expect_refused([](Command& c) { c.mutable_open(0)->set_prompt(0, 1000); });
  expect_refused([](Command& c) { c.mutable_open(0)->set_prompt(0, -1); });
  expect_refused([](Command& c) { c.mutable_open(0)->clear_prompt(); });
  expect_refused([](Command& c) { c.mutable_open(0)->set_total_tokens(2); });
  expect_refused([](Command& c) { c.mutable_open(0)->set_total_tokens(4097); });
  expect_refused([](Command& c) { c.mutable_open(0)->set_num_prompt_logprobs(21); });
  expect_refused([](Command& c) { c.mutable_open(0)->add_first_targets(1000); });
  expect_refused([](Command& c) { c.mutable_open(0)->mutable_attention()->set_policy(3); });
  expect_refused([](Command& c) { c.mutable_open(0)->mutable_attention()->set_ranking(9); });
  expect_refused([](Command& c) { c.mutable_open(0)->mutable_attention()->set_prefill(3); });
  for (const int32_t rows : {-64, 0, 3, 128}) {
    expect_refused(
        [rows](Command& c) { c.mutable_open(0)->mutable_attention()->set_tail_run(rows); });
  }
  expect_refused([](Command& c) { c.mutable_open(0)->set_given_tokens(3); });
  expect_refused([](Command& c) { c.mutable_open(0)->set_given_tokens(-1); });
  expect_refused(
      [&](Command& c) { c.mutable_open(0)->mutable_attention()->set_retrieval_ratio(nan); });
  expect_refused(
      [](Command& c) { c.mutable_open(0)->mutable_attention()->set_streaming_window(0); });
  expect_refused([&](Command& c) {
    c.mutable_open(0)->mutable_sampling()->set_temperature(static_cast<float>(nan));
  });
  expect_refused([](Command& c) {
    c.mutable_open(0)->mutable_sampling()->set_temperature(std::numeric_limits<float>::infinity());
  });
  expect_refused([](Command& c) { c.mutable_open(0)->mutable_sampling()->set_top_p(0); });
  expect_refused([](Command& c) { c.mutable_open(0)->mutable_sampling()->set_num_logprobs(21); });
  expect_refused([](Command& c) {
    c.mutable_open(0)->mutable_sampling()->mutable_logit_bias(0)->set_token(1000);
  });
  expect_refused([](Command& c) {
    c.mutable_open(0)->mutable_sampling()->mutable_logit_bias(0)->set_token(6);  // twice
  });
  expect_refused([](Command& c) { c.mutable_claim(0)->mutable_cached(0)->set_name("short"); });
  expect_refused([](Command& c) { c.mutable_claim(0)->mutable_cached(0)->set_token_begin(-1); });
  expect_refused([](Command& c) { c.mutable_claim(0)->mutable_extents(0)->set_generated("x"); });
  expect_refused([](Command& c) { c.mutable_lengthen(0)->set_total_tokens(4097); });
  expect_refused(
      [](Command& c) { c.mutable_lengthen(0)->mutable_growths(0)->set_first(uint64_t{1} << 40); });
  expect_refused([](Command& c) { c.mutable_admit(0)->set_dense(-1); });
  expect_refused(
      [](Command& c) { c.mutable_grow(0)->set_meta(std::numeric_limits<int32_t>::max()); });
  expect_refused([](Command& c) { c.mutable_passes(0)->set_num_rows(0); });
  expect_refused([](Command& c) { c.mutable_passes(0)->set_first_row(-1); });
  expect_refused([](Command& c) { c.mutable_measure(0)->set_num_rows(-1); });
  expect_refused([](Command& c) { c.mutable_rows(0)->set_token(1000); });
  expect_refused([](Command& c) { c.mutable_rows(0)->set_target(-2); });
  expect_refused([](Command& c) {
    for (uint64_t i = 0; i < 17; ++i) c.add_finish(i);
  });
  expect_refused([](Command& c) {
    for (int i = 0; i < 17; ++i) *c.add_rows() = c.rows(0);
  });
}

TEST(CommandCodecTest, BytesThatAreNoCommandAreRefused) {
  EXPECT_FALSE(DecodeCommand(std::string(kLimits.max_bytes + 1, '\0'), kLimits).ok());
  const std::string bytes = EncodeCommand(Full()).value();
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) {
    std::string changed = bytes;
    for (uint64_t j = random() % 4; j < 4; ++j) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) changed.resize(random() % changed.size());
    const absl::StatusOr<StepCommand> command = DecodeCommand(changed, kLimits);
    if (!command.ok()) continue;
    for (const StepCommand::Open& open : command->open) {
      EXPECT_LE(open.total_tokens, kLimits.max_model_len);
      for (const int32_t token : open.prompt) ASSERT_TRUE(token >= 0 && token < 1000);
    }
  }
}

}  // namespace
}  // namespace retroinfer
