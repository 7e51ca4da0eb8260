#include "gpu_worker/server/worker_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WorkerOptionsTest : public ::testing::Test {
 protected:
  absl::StatusOr<bool> Parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "gpu_worker");
    return ParseWorkerOptions(static_cast<int>(arguments.size()), arguments.data(), &options_);
  }
  WorkerOptions options_;
};

TEST_F(WorkerOptionsTest, OnlyTheModelIsNeeded) {
  ASSERT_TRUE(Parse({"--model", "/m"}).ok());
  EXPECT_EQ(options_.model_folder, "/m");
  EXPECT_THAT(options_.server.addresses, ElementsAre("127.0.0.1:50051"));
  EXPECT_EQ(options_.default_attention.policy, PolicyKind::kWave);
  EXPECT_FALSE(options_.server.keys->ring()->required());
  options_ = {};
  EXPECT_THAT(std::string(Parse({}).status().message()), HasSubstr("--model is missing"));
}

TEST_F(WorkerOptionsTest, FlagsArrive) {
  ASSERT_TRUE(Parse({"--model=/m", "--listen=unix:/a,127.0.0.1:0", "--policy=full", "--memory=2GiB",
                     "--block-cache-bytes=64MiB", "--max-model-len=1000", "--drain-timeout=5s",
                     "--retrieval-ratio=0.5", "--quality=high", "--prefill=sparse"})
                  .ok());
  EXPECT_THAT(options_.server.addresses, ElementsAre("unix:/a", "127.0.0.1:0"));
  EXPECT_EQ(options_.default_attention.policy, PolicyKind::kFull);
  EXPECT_EQ(options_.memory_bytes, uint64_t{2} << 30);
  EXPECT_EQ(options_.block_cache_bytes, uint64_t{64} << 20);
  EXPECT_EQ(options_.max_model_len, 1000);
  EXPECT_EQ(options_.drain_timeout, absl::Seconds(5));
  EXPECT_EQ(options_.retrieval_ratio, 0.5);
  EXPECT_EQ(options_.quality, RetrievalQuality::kHigh);
  EXPECT_EQ(options_.default_attention.prefill, PrefillKind::kSparse);
}

TEST_F(WorkerOptionsTest, RefusesWhatItDoesNotUnderstand) {
  for (const char* bad :
       {"--rope-scaling=linear:4", "--nonsense", "--policy=quest", "--quality=best",
        "--prefill=fast", "--tail-run=3", "--tail-run=128", "--max-batch=0", "--retrieval-ratio=2",
        "--memory=lots", "--drain-timeout=soon"}) {
    EXPECT_EQ(Parse({"--model=/m", bad}).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

TEST_F(WorkerOptionsTest, StreamingReadsNoPromptSparsely) {
  EXPECT_EQ(Parse({"--model=/m", "--policy=streaming", "--prefill=sparse"}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Parse({"--model=/m", "--policy=streaming", "--prefill=exact"}).ok());
}

TEST_F(WorkerOptionsTest, RandomWeightsNeedAShapeAndNoModel) {
  ASSERT_TRUE(Parse({"--load-format=dummy", "--model-shape=llama-3-8b"}).ok());
  EXPECT_EQ(options_.load_format, "dummy");
  EXPECT_EQ(options_.model_shape, "llama-3-8b");
  EXPECT_EQ(options_.synthetic_context, 0);
  options_ = {};
  EXPECT_TRUE(Parse({"--load-format=dummy", "--model=/m"}).ok());
  options_ = {};
  EXPECT_THAT(std::string(Parse({"--load-format=dummy"}).status().message()),
              HasSubstr("needs a shape"));
  options_ = {};
  EXPECT_THAT(std::string(Parse({"--model=/m", "--model-shape=tiny"}).status().message()),
              HasSubstr("add --load-format dummy"));
}

TEST_F(WorkerOptionsTest, SyntheticContextsAreForRandomWeightsAlone) {
  EXPECT_THAT(std::string(Parse({"--model=/m", "--synthetic-context=5000"}).status().message()),
              HasSubstr("needs --load-format dummy"));
  options_ = {};
  ASSERT_TRUE(Parse({"--model=/m", "--load-format=dummy", "--synthetic-context=122880",
                     "--synthetic-overlap=0.9"})
                  .ok());
  EXPECT_EQ(options_.synthetic_context, 122'880);
  EXPECT_EQ(options_.synthetic_overlap, 0.9);
  for (const char* bad : {"--synthetic-context=-1", "--synthetic-context=999999999",
                          "--synthetic-overlap=2", "--load-format=safetensors"}) {
    options_ = {};
    EXPECT_FALSE(Parse({"--load-format=dummy", "--model-shape=tiny", bad}).ok()) << bad;
  }
}

TEST_F(WorkerOptionsTest, RecordsIfItIsToldTo) {
  ASSERT_TRUE(Parse({"--model=/m"}).ok());
  EXPECT_EQ(options_.record_trace_file, "");
  options_ = {};
  ASSERT_TRUE(Parse({"--model=/m", "--record-trace=/t", "--record-trace-bytes=1MiB"}).ok());
  EXPECT_EQ(options_.record_trace_file, "/t");
  EXPECT_EQ(options_.record_trace_bytes, 1u << 20);
  EXPECT_THAT(std::string(Parse({"--model=/m", "--record-trace-bytes=100"}).status().message()),
              HasSubstr("it needs 4096 or more"));
}

TEST_F(WorkerOptionsTest, SeveralRanksDoNotDoAllThatOneDoes) {
  ASSERT_TRUE(Parse({"--model=/m", "--tensor-parallel=4", "--rank-timeout=30s"}).ok());
  EXPECT_EQ(options_.num_ranks, 4);
  EXPECT_EQ(options_.rank, 0);
  EXPECT_EQ(options_.rank_timeout, absl::Seconds(30));
  for (const char* const wrong :
       {"--tensor-parallel=0", "--tensor-parallel=9", "--rank-timeout=0s"}) {
    options_ = {};
    EXPECT_FALSE(Parse({"--model=/m", wrong}).ok()) << wrong;
  }
  options_ = {};
  EXPECT_TRUE(Parse({"--model=/m", "--tensor-parallel=2", "--record-trace=/t"}).ok());
}

TEST_F(WorkerOptionsTest, ADraftModelIsForStepsThatTryDrafts) {
  ASSERT_TRUE(Parse({"--model=/m", "--draft-model=/d"}).ok());
  EXPECT_EQ(options_.draft_model_folder, "/d");
  EXPECT_EQ(options_.speculation, "auto");
  options_ = {};
  EXPECT_THAT(
      std::string(
          Parse({"--model=/m", "--draft-model=/d", "--speculation=off"}).status().message()),
      HasSubstr("add --speculation auto"));
  options_ = {};
  EXPECT_TRUE(Parse({"--model=/m", "--draft-model=/d", "--tensor-parallel=2"}).ok());
}

TEST_F(WorkerOptionsTest, TheApiKeyComesFromAFile) {
  const auto path = std::filesystem::temp_directory_path() / "retroinfer_api_key_test";
  std::ofstream(path) << "  secret\n";
  ASSERT_TRUE(Parse({"--model=/m", "--api-key-file", path.c_str()}).ok());
  EXPECT_TRUE(options_.server.keys->ring()->Find("Bearer secret").ok());
  std::ofstream(path) << "\n";
  EXPECT_FALSE(Parse({"--model=/m", "--api-key-file", path.c_str()}).ok());
  std::filesystem::remove(path);
  EXPECT_FALSE(Parse({"--model=/m", "--api-key-file", path.c_str()}).ok());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);  // is not waited for
  EXPECT_FALSE(Parse({"--model=/m", "--api-key-file", path.c_str()}).ok());
  std::filesystem::remove(path);
}

TEST_F(WorkerOptionsTest, AddressesThatOthersReachAreWarnedOf) {
  ASSERT_TRUE(Parse({"--model=/m", "--listen=unix:/a,127.0.0.1:0,[::1]:0"}).ok());
  EXPECT_THAT(options_.warnings, ::testing::IsEmpty());
  options_ = {};
  ASSERT_TRUE(Parse({"--model=/m", "--listen=127.0.0.1:0,0.0.0.0:50051"}).ok());
  EXPECT_THAT(options_.warnings, ElementsAre(HasSubstr("0.0.0.0:50051 is reached by other machines "
                                                       "without TLS"),
                                             HasSubstr("--api-key-file or --tls-client-ca")));
  options_ = {};
  ASSERT_TRUE(Parse({"--model=/m", "--listen=[::]:1", "--tls-certificate=/c", "--tls-key=/k",
                     "--tls-client-ca=/a"})
                  .ok());
  EXPECT_THAT(options_.warnings, ::testing::IsEmpty());
}

TEST_F(WorkerOptionsTest, IndexedPrefillWithoutAnIndexIsWarnedOf) {
  ASSERT_TRUE(Parse({"--model=/m", "--prefill=indexed"}).ok());
  EXPECT_THAT(options_.warnings, ::testing::IsEmpty());
  options_ = {};
  ASSERT_TRUE(Parse({"--model=/m", "--prefill=indexed", "--policy=full"}).ok());
  EXPECT_THAT(options_.warnings, ElementsAre(HasSubstr("with --policy full")));
}

TEST_F(WorkerOptionsTest, MayBeAskedToCheckTheSettingsOnly) {
  ASSERT_TRUE(Parse({"--model=/m"}).ok());
  EXPECT_FALSE(options_.checks_only);
  options_ = {};
  ASSERT_TRUE(Parse({"--model=/m", "--check-settings"}).ok());
  EXPECT_TRUE(options_.checks_only);
  EXPECT_FALSE(Parse({"--model=/m", "--check-settings", "--max-batch=0"}).ok());
}

TEST_F(WorkerOptionsTest, NoneIsNoMetricsEndpoint) {
  ASSERT_TRUE(Parse({"--model=/m"}).ok());
  EXPECT_EQ(options_.metrics_address, "127.0.0.1:9401");
  options_ = {};
  ASSERT_TRUE(Parse({"--model=/m", "--metrics-address=none"}).ok());
  EXPECT_EQ(options_.metrics_address, "");
}

}  // namespace
}  // namespace retroinfer
