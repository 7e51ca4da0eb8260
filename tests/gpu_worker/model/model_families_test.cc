#include "gpu_worker/model/model_families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "build_paths.h"

namespace retroinfer {
namespace {

using ::testing::HasSubstr;

TEST(ModelFamiliesTest, EachIsFoundByItsNames) {
  std::set<std::string> names;
  std::set<ModelFamily> families;
  for (const Family& family : ModelFamilies()) {
    SCOPED_TRACE(family.architecture);
    EXPECT_TRUE(names.insert(family.architecture).second);
    EXPECT_TRUE(names.insert(family.model_type).second);
    // A language model that is also a part of another model is one family, named by itself.
    const bool is_first = families.insert(family.family).second;
    EXPECT_TRUE(is_first || family.architecture == std::string("Gemma3ForConditionalGeneration"))
        << "the fingerprint has the number";
    EXPECT_EQ(FindFamily(family.architecture), &family);
    EXPECT_EQ(FindFamilyOfType(family.model_type), &family);
    if (is_first) {
      EXPECT_EQ(ModelFamilyName(family.family), family.model_type);
      EXPECT_EQ(ModelArchitecture(family.family), family.architecture);
    }
    EXPECT_THAT(SupportedArchitectures(), HasSubstr(family.architecture));
  }
  EXPECT_EQ(FindFamily("llama"), nullptr);
  EXPECT_EQ(FindFamilyOfType("LlamaForCausalLM"), nullptr);
}

std::string Document(const std::string& name) {
  std::stringstream text;
  text << std::ifstream(std::string(RETROINFER_SOURCE_DIR) + "/" + name).rdbuf();
  return text.str();
}

// `retroinfer models` prints it.
TEST(ModelFamiliesTest, TheDocumentsHaveTheTable) {
  EXPECT_THAT(Document("docs/use/serving.md"), HasSubstr("\n\n" + ModelFamiliesMarkdown() + "\n"));
}

TEST(ModelFamiliesTest, TheReadmeNamesThem) {
  std::stringstream words(Document("README.md"));
  std::string in_one_line, word;
  while (words >> word) in_one_line += (in_one_line.empty() ? "" : " ") + word;
  EXPECT_THAT(in_one_line, HasSubstr(ModelFamiliesInWords()));
}

}  // namespace
}  // namespace retroinfer
