#include "common/door/tls_certificates.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "tests/support/certificates.h"

namespace retroinfer::common {
namespace {

class TlsCertificatesTest : public ::testing::Test {
 protected:
  TlsCertificatesTest() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "retroinfer-tls-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    files_ = {Path("c.pem"), Path("k.pem"), ""};
    WriteCertificate(files_.certificate, files_.key);
    WriteCertificate(Path("other.pem"), Path("other.key"));
  }
  ~TlsCertificatesTest() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Copy(const std::string& from, const std::string& to) const {
    std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing);
  }

  std::string folder_;
  TlsFiles files_;
};

TEST_F(TlsCertificatesTest, FilesThatAreNotGoodAreRefused) {
  EXPECT_TRUE(TlsCertificates::Load(files_).ok());
  const auto code = [](const TlsFiles& files) {
    return TlsCertificates::Load(files).status().code();
  };
  EXPECT_EQ(code({files_.certificate, Path("absent"), ""}), absl::StatusCode::kNotFound);
  EXPECT_EQ(code({files_.certificate, Path("other.key"), ""}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({files_.key, files_.key, ""}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({files_.certificate, files_.key, files_.key}), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(::mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(code({Path("fifo"), files_.key, ""}), absl::StatusCode::kInvalidArgument);
}

TEST_F(TlsCertificatesTest, AreCheckedTogether) {
  EXPECT_TRUE(TlsCertificates::Check({}).ok());
  EXPECT_TRUE(TlsCertificates::Check(files_).ok());
  for (const TlsFiles& some : {TlsFiles{files_.certificate, "", ""}, TlsFiles{"", files_.key, ""},
                               TlsFiles{"", "", files_.certificate},
                               TlsFiles{files_.certificate, Path("other.key"), ""}}) {
    EXPECT_EQ(TlsCertificates::Check(some).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(TlsCertificates::Check({Path("none"), files_.key, ""}).code(),
            absl::StatusCode::kNotFound);
}

TEST_F(TlsCertificatesTest, TheLastGoodOnesStay) {
  auto certificates = TlsCertificates::Load(files_);
  ASSERT_TRUE(certificates.ok());
  SSL_CTX* const first = (*certificates)->context();
  EXPECT_FALSE(*(*certificates)->Reload());  // nothing has changed
  // A certificate whose key has not come yet, as in the middle of a renewal.
  Copy(Path("other.pem"), files_.certificate);
  EXPECT_FALSE((*certificates)->Reload().ok());
  EXPECT_EQ((*certificates)->context(), first);
  EXPECT_FALSE(*(*certificates)->Reload());  // told once
  Copy(Path("other.key"), files_.key);
  const absl::StatusOr<bool> changed = (*certificates)->Reload();
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_TRUE(*changed);
  EXPECT_NE((*certificates)->context(), first);
  std::filesystem::remove(files_.key);
  EXPECT_EQ((*certificates)->Reload().status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(*(*certificates)->Reload());
}

TEST_F(TlsCertificatesTest, AnExpiredOneDoesNotReplaceAValidOne) {
  auto certificates = TlsCertificates::Load(files_);
  ASSERT_TRUE(certificates.ok());
  const absl::Time expires = (*certificates)->expires();
  EXPECT_GT(expires, absl::Now());
  WriteCertificate(files_.certificate, files_.key, /*valid_seconds=*/-60);
  EXPECT_EQ((*certificates)->Reload().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*certificates)->expires(), expires);
}

}  // namespace
}  // namespace retroinfer::common
