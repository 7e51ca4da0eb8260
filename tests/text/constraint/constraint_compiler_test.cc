#include "text/constraint/constraint_compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/text/constraint/constraint_fixtures.h"

namespace retroinfer::constraint {
namespace {

TEST(ConstraintCompilerTest, RemembersWhatItCompiled) {
  ConstraintCompiler compiler(ByteVocabulary());
  const auto first = compiler.Compile(Regex("a+"));
  const auto again = compiler.Compile(Regex("a+"));
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(*first, *again);
  ConstraintSpec thinking = Regex("a+");
  thinking.thoughts = Thoughts{.open = "", .close = "x"};
  EXPECT_NE(*first, *compiler.Compile(thinking));
  EXPECT_NE(*first, *compiler.Compile(Choices({"a+"})));
}

TEST(ConstraintCompilerTest, ForgetsTheLeastRecentlyUsed) {
  ConstraintCompiler compiler(ByteVocabulary(), {.cache_constraints_max = 2});
  const std::weak_ptr<const Constraint> a = *compiler.Compile(Regex("a"));
  const std::weak_ptr<const Constraint> b = *compiler.Compile(Regex("b"));
  ASSERT_TRUE(compiler.Compile(Regex("a")).ok());
  ASSERT_TRUE(compiler.Compile(Regex("c")).ok());
  EXPECT_FALSE(a.expired());
  EXPECT_TRUE(b.expired());
}

TEST(ConstraintCompilerTest, BytesOfAllConstraintsAreBounded) {
  ConstraintCompiler compiler(ByteVocabulary(), {.cache_bytes_max = 100'000});
  std::vector<std::weak_ptr<const Constraint>> compiled;
  for (int i = 0; i < 50; ++i) {
    const auto constraint = compiler.Compile(Regex("[a-z]{" + std::to_string(400 + i) + "}"));
    ASSERT_TRUE(constraint.ok());
    compiled.push_back(*constraint);
  }
  size_t bytes = 0;
  for (const auto& weak : compiled) {
    if (const auto constraint = weak.lock()) bytes += constraint->memory_bytes();
  }
  EXPECT_GT(bytes, 0u);
  EXPECT_LE(bytes, 100'000u);
  EXPECT_TRUE(compiled.front().expired());
}

TEST(ConstraintCompilerTest, AnErrorIsNotRemembered) {
  ConstraintCompiler compiler(ByteVocabulary());
  for (int i = 0; i < 2; ++i) {
    const auto constraint = compiler.Compile(Regex("("));
    EXPECT_EQ(constraint.status().code(), absl::StatusCode::kInvalidArgument);
    const common::ErrorReason reason = common::ReasonOf(constraint.status());
    EXPECT_EQ(reason.reason, "INVALID_CONSTRAINT");
    EXPECT_EQ(reason.metadata.at("at"), "offset 1");
  }
}

TEST(ConstraintCompilerTest, ThreadsShareOneConstraint) {
  ConstraintCompiler compiler(BpeVocabulary());
  const ConstraintSpec spec = JsonSchema(R"({"type": "array", "items": {"type": "integer"}})");
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&compiler, &spec] {
      for (int round = 0; round < 20; ++round) {
        const auto constraint = compiler.Compile(spec);
        ASSERT_TRUE(constraint.ok());
        Matcher matcher(*constraint);
        for (const char byte : std::string_view("[12,3]")) {
          EXPECT_TRUE(IsSet(MaskOf(matcher, *BpeVocabulary()), static_cast<uint8_t>(byte)));
          EXPECT_TRUE(matcher.Accept(static_cast<uint8_t>(byte)));
        }
        EXPECT_TRUE(matcher.MustEnd());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace retroinfer::constraint
