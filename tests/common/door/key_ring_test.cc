#include "common/door/key_ring.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace retroinfer::common {
namespace {

constexpr char kFile[] = R"([[tenant]]
name = "search"
keys = ["one", "two"]
weight = 2
highest_priority = -3
max_requests = 5
max_waiting_tokens = 100000
max_contexts = 7

[[tenant]]
name = "batch"
key_sha256 = ["8B5B9DB0C13DB24256C829AA364AA90C6D2EBA318B9232A4AB9313B954D3555F"]  # "three"
)";

TEST(KeyRing, WithoutAKeyEverythingPasses) {
  const KeyRing ring("");
  EXPECT_FALSE(ring.required());
  EXPECT_TRUE(ring.Find("").ok());
  EXPECT_EQ((*ring.Find("Bearer anything"))->name, "");
}

TEST(KeyRing, OnlyTheKeyPasses) {
  const KeyRing ring("secret");
  EXPECT_TRUE(ring.required());
  EXPECT_FALSE(ring.names_tenants());
  EXPECT_EQ((*ring.Find("Bearer secret"))->name, "");
  for (const char* wrong : {"", "secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secret1",
                            "Bearer Secret", "bearer secret", "Basic secret"}) {
    const absl::Status status = ring.Find(wrong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << wrong;
    EXPECT_EQ(ReasonOf(status).reason, "API_KEY_REQUIRED") << wrong;
  }
}

TEST(KeyRing, AFileSaysWhoseAKeyIs) {
  const absl::StatusOr<KeyRing> ring = KeyRing::Parse(kFile);
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_TRUE(ring->names_tenants());
  ASSERT_EQ(ring->tenants().size(), 2u);
  const Tenant expected{.name = "search",
                        .weight = 2,
                        .highest_priority = -3,
                        .max_requests = 5,
                        .max_waiting_tokens = 100000,
                        .max_contexts = 7};
  EXPECT_EQ(**ring->Find("Bearer one"), expected);
  EXPECT_EQ(**ring->Find("Bearer two"), expected);
  EXPECT_EQ(**ring->Find("Bearer three"), Tenant{.name = "batch"});
  EXPECT_FALSE(ring->Find("Bearer four").ok());
  EXPECT_FALSE(ring->Find("").ok());
}

TEST(KeyRing, RefusesWhatItDoesNotUnderstandAndSaysWhere) {
  const std::string good = "[[tenant]]\nname = 'a'\nkeys = ['k']\n";
  ASSERT_TRUE(KeyRing::Parse(good).ok());
  ASSERT_TRUE(KeyRing::Parse(good + " # \xC3\xA9\n").ok());
  const struct {
    std::string text;
    const char* says;
  } cases[] = {
      {"", "no tenant"},
      {"tenant = 3", "line 1"},
      {"[[tenants]]\nname = 'a'\nkeys = ['k']", "'tenants' is unknown"},
      {"[[tenant]]\nname = 'a'", "has no key"},
      {"[[tenant]]\nkeys = ['k']", "no name"},
      {"[[tenant]]\nname = 'a b'\nkeys = ['k']", "line 2: name must be"},
      {"[[tenant]]\nname = 'a'\nkeys = 'k'", "line 3: keys must be a list"},
      {"[[tenant]]\nname = 'a'\nkeys = ['']", "line 3: keys"},
      {"[[tenant]]\nname = 'a'\nkey_sha256 = ['12']", "64 hexadecimal"},
      {good + "weigth = 2\n", "line 4: 'weigth' is unknown"},
      {good + "weight = 0\n", "weight must be"},
      {good + "weight = nan\n", "weight must be"},
      {good + "weight = '2'\n", "weight must be"},
      {good + "max_requests = -1\n", "line 4: max_requests must be a whole number"},
      {good + "max_requests = 1.5\n", "max_requests must be a whole number"},
      {good + "highest_priority = 3000000000\n", "highest_priority must be"},
      {good + good, "two tenants a"},
      {good + "[[tenant]]\nname = 'b'\nkeys = ['k']\n", "twice, or is another tenant's"},
      {good + "name = 'b'\n", "line 4"},
      {"[[tenant]\n", "line 1"},
      {good + "# \xC3\xA9\nk\xEC\xBE\x99 = 1\n", "line 5: a character that is not ASCII"},
      {"[:a]\n", "line 1"},
      {std::string("[") + '\0', "line 1: a control character"},
  };
  for (const auto& [text, says] : cases) {
    const absl::Status status = KeyRing::Parse(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_TRUE(absl::StrContains(status.message(), says)) << text << "\n" << status;
  }
}

class KeyHolderTest : public testing::Test {
 protected:
  KeyHolderTest() { std::filesystem::create_directories(folder_); }
  ~KeyHolderTest() override { std::filesystem::remove_all(folder_); }
  std::string Write(std::string_view text) {
    const std::string path = folder_ + "/tenants.toml";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    return path;
  }
  const std::string folder_ = absl::StrCat(testing::TempDir(), "/retroinfer-key-ring-", getpid());
};

TEST_F(KeyHolderTest, WaitsForNoPipe) {
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, folder_}) {
    const absl::Status status = KeyHolder::Open("", path).status();
    EXPECT_TRUE(absl::StrContains(status.message(), "needs a regular file")) << status;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(KeyHolder::Open("", folder_ + "/none").status()));
  std::filesystem::create_symlink(Write(kFile), folder_ + "/link");
  EXPECT_TRUE(KeyHolder::Open("", folder_ + "/link").ok());
}

TEST_F(KeyHolderTest, ABadFileLeavesTheKeysAsTheyWere) {
  const std::string path = Write(kFile);
  absl::StatusOr<std::unique_ptr<KeyHolder>> keys = KeyHolder::Open("", path);
  ASSERT_TRUE(keys.ok()) << keys.status();
  const std::shared_ptr<const KeyRing> old = (*keys)->ring();
  Write("[[tenant]]\nname = 'other'\n");
  const absl::Status status = (*keys)->Reload();
  EXPECT_TRUE(absl::StrContains(status.message(), path)) << status;
  EXPECT_TRUE((*keys)->ring()->Find("Bearer one").ok());
  Write("[[tenant]]\nname = 'other'\nkeys = ['new']\n");
  ASSERT_TRUE((*keys)->Reload().ok());
  EXPECT_FALSE((*keys)->ring()->Find("Bearer one").ok());
  EXPECT_EQ((*(*keys)->ring()->Find("Bearer new"))->name, "other");
  EXPECT_TRUE(old->Find("Bearer one").ok()) << "who holds a ring keeps it";
}

TEST_F(KeyHolderTest, SaysWhatIsWrongWithTheFile) {
  for (const std::string& path : {folder_ + "/none", folder_, std::string("/dev/zero")}) {
    const absl::Status status = KeyHolder::Open("", path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_TRUE(absl::StrContains(status.message(), path)) << status;
  }
  EXPECT_FALSE(KeyHolder::Open("key", Write(kFile)).ok()) << "one of them is not used";
}

}  // namespace
}  // namespace retroinfer::common
