#include "http_gateway/page/page_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "absl/strings/str_cat.h"
#include "http_gateway/page/page_content.h"

namespace retroinfer::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string HeaderOf(const HttpResponse& response, const std::string& name) {
  for (const auto& [key, value] : response.headers) {
    if (key == name) return value;
  }
  return "";
}

TEST(PageFile, IsFoundByItsPath) {
  const PageFile* const index = FindPageFile("/");
  ASSERT_NE(index, nullptr);
  EXPECT_EQ(index->content_type, "text/html; charset=utf-8");
  EXPECT_THAT(std::string(index->content), HasSubstr("</html>"));
  EXPECT_EQ(FindPageFile("/page/main.js")->content_type, "text/javascript; charset=utf-8");
  EXPECT_EQ(FindPageFile("/page/style.css")->content_type, "text/css; charset=utf-8");
  EXPECT_EQ(FindPageFile("/page/icon.svg")->content_type, "image/svg+xml");
  for (const char* path : {"", "/page", "/page/", "/page/index.html", "/page/../main.js",
                           "/main.js", "/page/main.js/", "/page/none.js"}) {
    EXPECT_EQ(FindPageFile(path), nullptr) << path;
  }
}

TEST(PageFile, AsksForNothingElsewhere) {
  const std::regex reference(R"re((?:src|href)="([^"]*)"|from '([^']*)'|@import|url\()re");
  for (const PageContent& file : PageContents()) {
    const std::string text(file.content);
    for (std::sregex_iterator it(text.begin(), text.end(), reference), end; it != end; ++it) {
      std::string target = (*it)[1].matched ? (*it)[1].str() : (*it)[2].str();
      if (target.starts_with('#')) continue;  // a place of the page itself
      if (target.starts_with("./")) target = absl::StrCat("/page/", target.substr(2));
      EXPECT_NE(FindPageFile(target), nullptr) << file.name << ": " << it->str();
    }
    // What the policy would refuse.
    for (const char* const sink : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                                   "eval(", "new Function", "DOMParser", "srcdoc"}) {
      EXPECT_THAT(text, Not(HasSubstr(sink))) << file.name;
    }
    EXPECT_THAT(text, Not(HasSubstr(" style=\""))) << file.name;
    EXPECT_THAT(text, Not(HasSubstr("<style"))) << file.name;
  }
}

TEST(PageFile, ComesWithAPolicyAndAVersion) {
  const PageFile& file = *FindPageFile("/page/main.js");
  const HttpResponse whole = PageResponse(file, "");
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.body, file.content);
  EXPECT_THAT(HeaderOf(whole, "Content-Security-Policy"), HasSubstr("default-src 'none'"));
  EXPECT_THAT(HeaderOf(whole, "Content-Security-Policy"), HasSubstr("frame-ancestors 'none'"));
  EXPECT_EQ(HeaderOf(whole, "X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(HeaderOf(whole, "Cache-Control"), "no-cache");
  const std::string etag = HeaderOf(whole, "ETag");
  EXPECT_NE(etag, FindPageFile("/")->etag);
  for (const std::string& known :
       {etag, absl::StrCat("W/", etag), absl::StrCat("\"other\", ", etag), std::string("*")}) {
    const HttpResponse same = PageResponse(file, known);
    EXPECT_EQ(same.status, 304) << known;
    EXPECT_EQ(same.body, "");
    EXPECT_EQ(HeaderOf(same, "ETag"), etag);
  }
  for (const std::string& other : {FindPageFile("/")->etag, etag.substr(1), std::string(",")}) {
    EXPECT_EQ(PageResponse(file, other).status, 200) << other;
  }
}

}  // namespace
}  // namespace retroinfer::gateway
