#include "gpu_worker/model/missing_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

namespace fs = std::filesystem;
using test_support::TempFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MissingWeightsTest, NothingIsSaidOfWhatIsNoWeights) {
  TempFolder folder;
  for (const char* const name : {"config.json", "training_args.bin", "optimizer.pt", "README.md",
                                 "model.safetensors.index.json"}) {
    folder.Write(name, "x");
  }
  EXPECT_EQ(InsteadOfWeights(folder.path()), "");
  EXPECT_EQ(InsteadOfWeights(folder.File("absent")), "");
}

TEST(MissingWeightsTest, OtherFormatsAreNamed) {
  for (const char* const name : {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin",
                                 "consolidated.00.pth", "tf_model.h5", "model.onnx"}) {
    TempFolder folder;
    folder.Write(name, "x");
    EXPECT_THAT(InsteadOfWeights(folder.path()),
                AllOf(HasSubstr(name), HasSubstr("of another format"), HasSubstr("transformers")));
  }
  TempFolder folder;
  folder.Write("qwen2.5-7b-q4_k_m.gguf", "x");
  EXPECT_THAT(InsteadOfWeights(folder.path()),
              HasSubstr("q4_k_m.gguf is a model in GGUF, which can be named"));
}

TEST(MissingWeightsTest, AnUnfinishedDownloadIsFoundWhereToolsKeepIt) {
  for (const char* const name :
       {"model.safetensors.incomplete", "model.safetensors.part", "model.safetensors.aria2",
        ".cache/huggingface/download/cAfE.0abc.incomplete"}) {
    TempFolder folder;
    fs::create_directories(fs::path(folder.File(name)).parent_path());
    folder.Write(name, "x");
    folder.Write("pytorch_model.bin", "x");  // comes after that
    EXPECT_THAT(InsteadOfWeights(folder.path()),
                AllOf(HasSubstr("not complete"), HasSubstr(name), HasSubstr("hf download")));
  }
}

TEST(MissingWeightsTest, ASnapshotsPartsAreBesideIt) {
  TempFolder folder;
  const fs::path model = fs::path(folder.path()) / "models--some--model";
  fs::create_directories(model / "snapshots/abc");
  fs::create_directories(model / "blobs");
  folder.Write("models--some--model/blobs/0abc.incomplete", "x");
  EXPECT_THAT(InsteadOfWeights(model / "snapshots/abc"), HasSubstr("blobs/0abc.incomplete"));
  EXPECT_THAT(InsteadOfWeights(model / "snapshots/abc/"), HasSubstr("blobs/0abc.incomplete"));
  fs::create_directories(model / "other/abc");
  EXPECT_EQ(InsteadOfWeights(model / "other/abc"), "");
}

TEST(MissingWeightsTest, ALinkWithoutItsFileIsFound) {
  TempFolder folder;
  fs::create_symlink("../../blobs/abc", folder.File("model.safetensors"));
  EXPECT_THAT(InsteadOfWeights(folder.path()),
              AllOf(HasSubstr("model.safetensors is a link"), HasSubstr("cp -rL")));
}

TEST(MissingWeightsTest, TheFirstMissingFilesAreNamed) {
  TempFolder folder;
  EXPECT_THAT(DescribeMissingFiles(folder.path(), {"b"}, 2),
              AllOf(HasSubstr("names 2 files of weights, of which 1 is missing: b;"),
                    HasSubstr("run the download again")));
  EXPECT_THAT(DescribeMissingFiles(folder.path(), {"a", "b", "c", "d"}, 30),
              AllOf(HasSubstr("4 are missing: a, b, c ...;"), Not(HasSubstr(", d"))));
  folder.Write("d.incomplete", "x");
  EXPECT_THAT(DescribeMissingFiles(folder.path(), {"d"}, 2), HasSubstr("d.incomplete"));
}

}  // namespace
}  // namespace retroinfer
