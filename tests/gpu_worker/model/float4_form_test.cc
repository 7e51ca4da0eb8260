#include "gpu_worker/model/float4_form.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

TEST(Float4FormTest, PeopleAreToldWhatMakesItAndWhatAScaleIsOf) {
  EXPECT_EQ(kCompressedNvfp4.ToString(),
            "NVFP4 (compressed-tensors, a scale for each 16 input features)");
  EXPECT_EQ(kCompressedMxfp4.ToString(),
            "MXFP4 (compressed-tensors, a scale for each 32 input features)");
  EXPECT_EQ(kModelOptNvfp4.ToString(), "NVFP4 (modelopt, a scale for each 16 input features)");
}

}  // namespace
}  // namespace retroinfer
