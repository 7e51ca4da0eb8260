#include "gpu_worker/server/constraint_reader.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/status/error_reason.h"
#include "text/constraint/constraint_compiler.h"
#include "text/constraint/matcher.h"
#include "text/constraint/token_vocabulary.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace retroinfer {
namespace {

class ConstraintReaderTest : public testing::Test {
 protected:
  ConstraintReaderTest() {
    sampling_.max_tokens = 10;
    model_.constraints = std::make_shared<constraint::ConstraintCompiler>(
        constraint::TokenVocabulary::Create(*tokenizer_, {256}, 257));
  }
  // Whether the constraint takes the text, and then an end.
  bool Takes(const std::string& text) {
    const auto read = ReadConstraint(request_, sampling_, model_);
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok() || *read == nullptr) return false;
    constraint::Matcher matcher(*read);
    for (const char c : text) {
      if (!matcher.Accept(static_cast<unsigned char>(c))) return false;
    }
    return matcher.CanEnd();
  }
  std::string Refused() {
    const auto read = ReadConstraint(request_, sampling_, model_);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << read.status();
    return common::ReasonOf(read.status()).reason;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = CreateByteTokenizer();
  ServedModel model_;
  SamplingParams sampling_;
  generation::v1::GenerateRequest request_;
};

TEST_F(ConstraintReaderTest, WithoutOneThereIsNone) {
  const auto read = ReadConstraint(request_, sampling_, model_);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, nullptr);
}

TEST_F(ConstraintReaderTest, EveryFormIsRead) {
  auto& constraint = *request_.mutable_constraint();
  constraint.set_json_schema(R"({"type": "integer"})");
  EXPECT_TRUE(Takes("12"));
  EXPECT_FALSE(Takes("a"));
  constraint.set_regex("a+b");
  EXPECT_TRUE(Takes("aab"));
  EXPECT_FALSE(Takes("aa"));
  constraint.mutable_choices()->add_texts("yes");
  constraint.mutable_choices()->add_texts("no");
  EXPECT_TRUE(Takes("no"));
  EXPECT_FALSE(Takes("n"));
  constraint.set_grammar("root ::= \"<\" [0-9] \">\"");
  EXPECT_TRUE(Takes("<7>"));
  EXPECT_FALSE(Takes("7"));
}

TEST_F(ConstraintReaderTest, ThoughtsComeFirst) {
  request_.mutable_constraint()->set_regex("7");
  request_.mutable_constraint()->mutable_thoughts()->set_open("<a>");
  request_.mutable_constraint()->mutable_thoughts()->set_close("</a>");
  EXPECT_TRUE(Takes("<a>well</a>7"));
  EXPECT_TRUE(Takes("7"));
  request_.mutable_constraint()->mutable_thoughts()->clear_open();
  EXPECT_TRUE(Takes("well</a>7"));
  EXPECT_FALSE(Takes("7"));
}

TEST_F(ConstraintReaderTest, WhatCannotBeMetIsRefused) {
  request_.mutable_constraint();
  EXPECT_EQ(Refused(), "INVALID_CONSTRAINT") << "no form";
  request_.mutable_constraint()->set_regex("(");
  EXPECT_EQ(Refused(), "INVALID_CONSTRAINT");
  request_.mutable_constraint()->set_regex("a");
  sampling_.ignore_eos = true;
  EXPECT_EQ(Refused(), "INVALID_SAMPLING");
  sampling_.ignore_eos = false;
  sampling_.max_tokens = 0;
  EXPECT_EQ(Refused(), "INVALID_SAMPLING");
  sampling_.max_tokens = 1;
  model_.constraints = nullptr;
  EXPECT_EQ(Refused(), "INVALID_CONSTRAINT");
}

}  // namespace
}  // namespace retroinfer
