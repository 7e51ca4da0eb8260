#include "gpu_worker/model/stored_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/gpu_worker/model/safetensors_text.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::SafetensorsText;
using test_support::TempFolder;
using test_support::TensorText;
using ::testing::HasSubstr;

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

class StoredGroupsTest : public ::testing::Test {
 protected:
  absl::StatusOr<Checkpoint> Open(const std::vector<TensorText>& tensors) {
    folder_.Write("model.safetensors", SafetensorsText(tensors));
    return Checkpoint::Open(folder_.path());
  }
  absl::StatusOr<std::vector<int32_t>> Columns(const std::vector<int32_t>& groups,
                                               const std::string& type = "I32") {
    const auto checkpoint = Open({{"a.g_idx", type, {std::ssize(groups)}, Bytes(groups)}});
    if (!checkpoint.ok()) return checkpoint.status();
    return ColumnsByGroup(form_, form_.NamesOf("a.weight"), *checkpoint, std::ssize(groups));
  }
  void ExpectInvalid(const std::vector<int32_t>& groups, const std::string& part) {
    const auto columns = Columns(groups);
    EXPECT_EQ(columns.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(columns.status().message()), HasSubstr("\"a.g_idx\""));
    EXPECT_THAT(std::string(columns.status().message()), HasSubstr(part));
  }

  TempFolder folder_;
  StoredForm form_ = GptqInt4(2, 1);
};

TEST_F(StoredGroupsTest, ColumnsOfAGroupComeSideBySide) {
  EXPECT_EQ(*Columns({1, 0, 2, 0, 1}), (std::vector<int32_t>{1, 3, 0, 4, 2}));
  EXPECT_EQ(*Columns({0, 0, 1, 1, 2}), std::vector<int32_t>());
  form_ = GptqInt4(0, 1);
  EXPECT_EQ(*Columns({0, 0, 0}), std::vector<int32_t>());
}

TEST_F(StoredGroupsTest, WithoutNumbersTheyAreInOrder) {
  const auto checkpoint = Open({{"b", "F32", {1}, std::string(4, '\0')}});
  ASSERT_TRUE(checkpoint.ok());
  const CodedTensors names = form_.NamesOf("a.weight");
  EXPECT_EQ(*GroupsOfColumns(form_, names, *checkpoint, 5), (std::vector<int32_t>{0, 0, 1, 1, 2}));
  EXPECT_EQ(*ColumnsByGroup(form_, names, *checkpoint, 5), std::vector<int32_t>());
}

TEST_F(StoredGroupsTest, NumbersThatMakeNoGroupsAreNamed) {
  ExpectInvalid({0, 0, 1, 1, 3}, "group 3");
  ExpectInvalid({0, 0, 1, 1, -1}, "group -1");
  ExpectInvalid({0, 0, 0, 1, 2}, "3 input features");
  ExpectInvalid({0, 0, 1, 2, 2}, "1 input features");
  EXPECT_THAT(std::string(Columns({0, 0}, "F32").status().message()), HasSubstr("F32"));
  const auto checkpoint = Open({{"a.g_idx", "I32", {2, 1}, std::string(8, '\0')}});
  const absl::Status shape =
      GroupsOfColumns(form_, form_.NamesOf("a.weight"), *checkpoint, 2).status();
  EXPECT_THAT(std::string(shape.message()), HasSubstr("has shape [2, 1]"));
}

TEST_F(StoredGroupsTest, AStoredShapeMustBeTheMatrixs) {
  const StoredForm form = CompressedInt4(32, false);
  const CodedTensors names = form.NamesOf("a.weight");
  const auto check = [&](const TensorText& tensor) {
    const auto checkpoint = Open({tensor});
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return std::string(CheckStoredShape(form, names, *checkpoint, {8, 64}).message());
  };
  const std::string name = "a.weight_shape";
  EXPECT_EQ(check({name, "I64", {2}, Bytes<int64_t>({8, 64})}), "");
  EXPECT_THAT(check({name, "I64", {2}, Bytes<int64_t>({64, 8})}), HasSubstr("says [64, 8]"));
  EXPECT_THAT(check({name, "I64", {1}, Bytes<int64_t>({8})}), HasSubstr("has shape [1]"));
  EXPECT_THAT(check({name, "I32", {2}, Bytes<int32_t>({8, 64})}), HasSubstr("I32"));
  EXPECT_THAT(check({"b", "I64", {2}, Bytes<int64_t>({8, 64})}), HasSubstr("is missing"));
  EXPECT_TRUE(CheckStoredShape(GptqInt4(32, 1), {}, *Open({}), {8, 64}).ok());
}

}  // namespace
}  // namespace retroinfer
