#include "client/inspect/fit_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "gpu_worker/model/rope_scaling.h"

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kGiB = uint64_t{1} << 30;

// The shape of Llama-3.1-8B: 128 KiB of KV a token.
FitInput Llama8b() {
  FitInput input;
  input.worker.model.hidden_size = 4096;
  input.worker.model.intermediate_size = 14336;
  input.worker.model.num_layers = 32;
  input.worker.model.num_query_heads = 32;
  input.worker.model.num_kv_heads = 8;
  input.worker.model.head_dim = 128;
  input.worker.model.vocab_size = 128256;
  input.worker.model.context_length = 131072;
  input.worker.weight_bytes = 16 * kGiB;
  input.worker.max_batch = 4;
  input.available_bytes = 64 * kGiB;
  input.memory_bytes = 32 * kGiB;
  input.arena_bytes = 24 * kGiB;
  return input;
}

TEST(FitReport, AModelThatFitsWhole) {
  const FitInput input = Llama8b();
  const FitReport report = ExamineFit(input);
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_EQ(report.largest_context, 131072);
  EXPECT_EQ(report.kv_bytes_per_token, 128u << 10);
  EXPECT_THAT(DescribeFit(input, report), HasSubstr("Largest context: 131,072 tokens"));
  EXPECT_THAT(DescribeFit(input, report),
              HasSubstr("It fits: 131,072 tokens with policy wave.\n"
                        "Start with: retroinfer serve --model DIR --arena-bytes 24576MiB "
                        "--memory 32768MiB --max-model-len 131072 --max-batch 4\n"));
}

TEST(FitReport, HeadsThatArePaddedAreTold) {
  FitInput input = Llama8b();
  EXPECT_THAT(DescribeFit(input, ExamineFit(input)), HasSubstr("8 KV heads of 128, made for"));
  input.worker.model.stored_head_dim = 96;
  const FitReport report = ExamineFit(input);
  EXPECT_THAT(DescribeFit(input, report), HasSubstr("8 KV heads of 96 (kept as 128), made for"));
  EXPECT_EQ(report.kv_bytes_per_token, 128u << 10);
}

TEST(FitReport, TellsHowAModelReachesLongerContexts) {
  FitInput input = Llama8b();
  const auto describe = [&] { return DescribeFit(input, ExamineFit(input)); };
  const auto json = [&] { return nlohmann::json::parse(FitJson(input, ExamineFit(input))); };
  EXPECT_THAT(describe(), Not(HasSubstr("Longer")));
  EXPECT_FALSE(json().contains("documented_rope_scaling"));
  input.worker.model.family = ModelFamily::kQwen2;
  input.worker.model.max_positions = input.worker.model.context_length = 32768;
  EXPECT_THAT(describe(), HasSubstr("\nLonger   --rope-scaling yarn:4:32768: 131,072 tokens"));
  EXPECT_EQ(json()["documented_rope_scaling"], "yarn:4:32768");
  input.wanted_context = 65536;
  EXPECT_THAT(describe(), HasSubstr("no more than 32,768, or for more with --rope-scaling yarn:4"));
  input.wanted_context = 0;
  input.rope_scaling = "yarn:4:32768";
  ASSERT_TRUE(ApplyRopeScaling(input.rope_scaling, input.worker.model).ok());
  EXPECT_THAT(describe(), Not(HasSubstr("Longer")));
  EXPECT_THAT(describe(), HasSubstr("It fits: 131,072 tokens"));
  EXPECT_THAT(describe(), HasSubstr("serve --model DIR --rope-scaling yarn:4:32768 --arena"));
  EXPECT_EQ(json()["rope_scaling"], "yarn:4:32768");
  EXPECT_EQ(json()["model_context_tokens"], 131072);
}

TEST(FitReport, SaysThatFloatsOfFourBitsBecomeNumbers) {
  FitInput input = Llama8b();
  input.worker.model.float4 = kModelOptNvfp4;
  input.weight_scales = kModelOptNvfp4.ToString();
  EXPECT_THAT(DescribeFit(input, ExamineFit(input)),
              HasSubstr("16.00 GiB (NVFP4 (modelopt, a scale for each 16 input features): they "
                        "become bf16, four times their size; --weights-dtype fp8 or int4 "));
  input.weights_dtype = "int4";
  input.on_gpu = true;
  EXPECT_THAT(DescribeFit(input, ExamineFit(input)), Not(HasSubstr("four times")));
}

// The most generous policy is not the one that requests without a policy get.
TEST(FitReport, TheVerdictIsThatOfThePolicy) {
  FitInput input = Llama8b();
  input.memory_bytes = 40 * kGiB;
  input.available_bytes = 64 * kGiB;
  input.arena_bytes = 3 * kGiB;
  input.wanted_context = 65536;
  const FitReport wave = ExamineFit(input);
  EXPECT_FALSE(wave.status.ok());
  EXPECT_LT(wave.largest_context, 65536);
  EXPECT_THAT(std::string(wave.status.message()), HasSubstr("does not fit with policy wave"));
  EXPECT_EQ(nlohmann::json::parse(FitJson(input, wave))["policy"], "wave");
  input.policy = PolicyKind::kFull;
  const FitReport full = ExamineFit(input);
  EXPECT_TRUE(full.status.ok()) << full.status;
  EXPECT_GE(full.largest_context, 65536);
  EXPECT_THAT(DescribeFit(input, full), HasSubstr(" --policy full\n"));
}

// An arena for wave would not help a context that policy full keeps in dense blocks.
TEST(FitReport, APolicyWithoutSegmentsIsToldToNeedMemoryAlone) {
  FitInput input = Llama8b();
  input.memory_bytes = 24 * kGiB;
  input.arena_bytes = 3 * kGiB;
  input.wanted_context = 131072;
  input.policy = PolicyKind::kFull;
  const FitReport full = ExamineFit(input);
  EXPECT_FALSE(full.status.ok());
  EXPECT_EQ(full.target_arena_bytes, 3 * kGiB);
  EXPECT_THAT(std::string(full.status.message()), HasSubstr("(it needs --memory "));
  EXPECT_THAT(DescribeFit(input, full), HasSubstr("For 131,072 tokens: --memory "));
  EXPECT_THAT(DescribeFit(input, full), Not(HasSubstr("--arena-bytes 2")));
  // What it says is needed is enough.
  input.memory_bytes = full.target_memory_bytes;
  EXPECT_TRUE(ExamineFit(input).status.ok()) << ExamineFit(input).status;
  // Wave keeps a short context in dense blocks, too.
  input.policy = PolicyKind::kWave;
  input.arena_bytes = 1 << 20;
  input.wanted_context = 4096;
  EXPECT_EQ(ExamineFit(input).target_arena_bytes, 1u << 20);
}

TEST(FitReport, EachUserHasAContextAtATime) {
  FitInput input = Llama8b();
  input.available_bytes = 400 * kGiB;
  input.memory_bytes = 60 * kGiB;
  input.on_gpu = true;
  input.users = 10;
  input.wanted_context = 122880;
  const FitReport few = ExamineFit(input);  // 24 GiB of arena are for one
  EXPECT_FALSE(few.status.ok());
  EXPECT_THAT(std::string(few.status.message()), HasSubstr("10 users with policy wave"));
  EXPECT_GT(few.target_arena_bytes, 10 * 15 * kGiB);
  // What it says is needed is enough, and one user more is too many.
  input.arena_bytes = few.target_arena_bytes;
  input.memory_bytes = std::max<uint64_t>(input.memory_bytes, few.target_memory_bytes);
  const FitReport enough = ExamineFit(input);
  EXPECT_TRUE(enough.status.ok()) << enough.status;
  EXPECT_THAT(DescribeFit(input, enough), HasSubstr("--max-batch 10"));
  input.users = 11;
  EXPECT_FALSE(ExamineFit(input).status.ok());
}

TEST(FitReport, ASmallArenaLimitsTheContext) {
  FitInput input = Llama8b();
  input.arena_bytes = 8 * kGiB;
  input.memory_bytes = 24 * kGiB;
  const FitReport report = ExamineFit(input);
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_GT(report.largest_context, 20'000);
  EXPECT_LT(report.largest_context, 70'000);
  EXPECT_GT(report.target_arena_bytes, 16 * kGiB);
  EXPECT_THAT(DescribeFit(input, report), HasSubstr("For 131,072 tokens: --arena-bytes"));

  input.wanted_context = 100'000;
  const FitReport wanted = ExamineFit(input);
  EXPECT_EQ(wanted.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(wanted.status.message()), HasSubstr("100,000 tokens does not fit"));
  // What it says is needed is enough.
  input.arena_bytes = wanted.target_arena_bytes;
  input.memory_bytes = wanted.target_memory_bytes;
  EXPECT_TRUE(ExamineFit(input).status.ok());
}

TEST(FitReport, WeightsThatDoNotFit) {
  FitInput input = Llama8b();
  input.memory_bytes = 8 * kGiB;
  const FitReport report = ExamineFit(input);
  EXPECT_EQ(report.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(report.largest_context, 0);
  EXPECT_THAT(std::string(report.status.message()), HasSubstr("needs at least"));
  EXPECT_THAT(DescribeFit(input, report), HasSubstr("It does not fit"));
  const auto json = nlohmann::json::parse(FitJson(input, report));
  EXPECT_EQ(json["fits"], false);
  EXPECT_EQ(json["largest_context_tokens"], 0);
}

TEST(FitReport, WorkerAndArenaTogetherMustFitTheMachine) {
  FitInput input = Llama8b();
  input.available_bytes = 40 * kGiB;
  const FitReport report = ExamineFit(input);
  EXPECT_EQ(report.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(report.status.message()), HasSubstr("together"));
}

TEST(FitReport, AGpuIsFilledAndTheArenaIsTheMachines) {
  FitInput input = Llama8b();
  input.on_gpu = true;
  input.memory_bytes = 72 * kGiB;
  input.available_bytes = 128 * kGiB;
  input.arena_bytes = 112 * kGiB;
  const FitReport report = ExamineFit(input);
  ASSERT_TRUE(report.status.ok()) << report.status;
  EXPECT_EQ(report.largest_context, 131072);
  EXPECT_EQ(report.plan->num_transient_slots, 0u);
  EXPECT_GT(report.plan->total_bytes(), 71 * kGiB - 4096);
  EXPECT_THAT(DescribeFit(input, report), HasSubstr("72.00 GiB (--gpu-memory)"));

  input.arena_bytes = 130 * kGiB;
  EXPECT_THAT(std::string(ExamineFit(input).status.message()), HasSubstr("lower --arena-bytes"));
  input.memory_bytes = 12 * kGiB;
  EXPECT_THAT(std::string(ExamineFit(input).status.message()), HasSubstr("raise --gpu-memory"));
}

TEST(FitReport, AContextLongerThanTheModel) {
  FitInput input = Llama8b();
  input.wanted_context = 200'000;
  const FitReport report = ExamineFit(input);
  EXPECT_FALSE(report.status.ok());
  EXPECT_THAT(std::string(report.status.message()), HasSubstr("made for no more than 131,072"));
}

}  // namespace
}  // namespace retroinfer::client
