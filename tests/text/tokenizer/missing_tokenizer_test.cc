#include "text/tokenizer/missing_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/tokenizer/tokenizer_fixtures.h"

namespace retroinfer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(MissingTokenizerTest, NamesWhatIsThereInstead) {
  const TemporaryFolder folder;
  const auto message = [&] {
    const absl::Status status = Tokenizer::Load(folder.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(status, MissingTokenizer(folder.path()));
    EXPECT_THAT(Message(status), HasSubstr(folder.path().string() + " has no tokenizer.json"));
    return Message(status);
  };
  EXPECT_THAT(message(), HasSubstr("hf download NAME tokenizer.json"));
  folder.Write("tokenizer.model", "x");
  EXPECT_THAT(message(), AllOf(HasSubstr("tokenizer.model, which is not read"),
                               HasSubstr("AutoTokenizer"), HasSubstr("SentencePiece")));
  folder.Write("vocab.json", "{}");
  EXPECT_THAT(message(), Not(HasSubstr("vocab.json")));  // of no use without the merges
  folder.Write("merges.txt", "");
  EXPECT_THAT(message(), AllOf(HasSubstr("vocab.json and merges.txt"), HasSubstr("AutoTokenizer")));
}

TEST(MissingTokenizerTest, APointerIsNoTokenizer) {
  const TemporaryFolder folder;
  folder.Write("tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid x\nsize 7\n");
  const absl::Status status = Tokenizer::Load(folder.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("tokenizer.json is a pointer of Git LFS"));
}

}  // namespace
}  // namespace retroinfer
