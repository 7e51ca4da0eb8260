#include "gpu_worker/ops/cpu/addressable.h"

#include <gtest/gtest.h>

#include <memory>

namespace retroinfer::cpu {
namespace {

TEST(AddressableTest, WhatThereIsPasses) {
  const auto bytes = std::make_unique<char[]>(100);
  CheckAddressable(bytes.get(), 100);
  CheckAddressable(bytes.get() + 100, 0);
}

TEST(AddressableTest, OneByteBehindTheEndDoesNot) {
#ifdef __SANITIZE_ADDRESS__
  const auto bytes = std::make_unique<char[]>(100);
  EXPECT_DEATH(CheckAddressable(bytes.get(), 101), "asan_region_is_poisoned");
  EXPECT_DEATH(CheckAddressable(bytes.get() - 1, 1), "asan_region_is_poisoned");
#else
  GTEST_SKIP() << "needs the address sanitizer";
#endif
}

}  // namespace
}  // namespace retroinfer::cpu
