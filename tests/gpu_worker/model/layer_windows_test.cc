#include "gpu_worker/model/layer_windows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::StatusOr<std::vector<int32_t>> Read(const std::string& text, uint32_t num_layers) {
  const auto json = common::JsonReader::ParseObject(text, "config.json");
  EXPECT_TRUE(json.ok()) << json.status();
  ModelConfig model;
  model.num_layers = num_layers;
  const absl::Status status = ReadLayerWindows(*json, {.tokens = 100, .full_each = 3}, model);
  if (!status.ok()) return status;
  return model.layer_windows;
}

std::string Error(const std::string& text, uint32_t num_layers) {
  return std::string(Read(text, num_layers).status().message());
}

TEST(LayerWindowsTest, DefaultsAreTheFamilys) {
  EXPECT_THAT(*Read("{}", 4), ElementsAre(100, 100, 0, 100));
  EXPECT_THAT(*Read(R"({"sliding_window": 7, "sliding_window_pattern": 2})", 3),
              ElementsAre(7, 0, 7));
}

TEST(LayerWindowsTest, TypesOfLayersGoFirst) {
  EXPECT_THAT(*Read(R"({"layer_types": ["full_attention", "sliding_attention"],
                        "sliding_window_pattern": 1})",
                    2),
              ElementsAre(0, 100));
  EXPECT_THAT(*Read(R"({"layer_types": ["full_attention", "full_attention"]})", 2), IsEmpty());
}

TEST(LayerWindowsTest, RefusesWhatCannotBeServed) {
  EXPECT_THAT(Error(R"({"layer_types": ["full_attention"]})", 2), HasSubstr("1 entries for 2"));
  EXPECT_THAT(Error(R"({"layer_types": ["chunked_attention"]})", 1), HasSubstr("chunked"));
  EXPECT_THAT(Error("{}", 2), HasSubstr("without a layer of full attention"));
  EXPECT_THAT(Error(R"({"sliding_window": 0})", 3), HasSubstr("sliding_window"));
  EXPECT_THAT(Error(R"({"sliding_window": 1000000})", 3), HasSubstr("sliding_window"));
}

}  // namespace
}  // namespace retroinfer
