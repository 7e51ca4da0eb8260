#include "http_gateway/page/page_file.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "http_gateway/page/page_content.h"

namespace retroinfer::gateway {
namespace {

constexpr std::string_view kIndex = "index.html";
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'";

std::string_view ContentType(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/plain; charset=utf-8";
}

std::vector<PageFile> MakeFiles() {
  std::vector<PageFile> files;
  for (const PageContent& content : PageContents()) {
    files.push_back(
        {.path = content.name == kIndex ? "/" : absl::StrCat("/page/", std::string(content.name)),
         .content_type = std::string(ContentType(content.name)),
         .etag = absl::StrCat("\"", std::string(content.sha256.substr(0, 32)), "\""),
         .content = content.content});
  }
  return files;
}

}  // namespace

const PageFile* FindPageFile(std::string_view path) {
  static const std::vector<PageFile> files = MakeFiles();
  for (const PageFile& file : files) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

bool IsCurrent(const PageFile& file, std::string_view if_none_match) {
  for (const auto& part :
       absl::StrSplit(absl::string_view(if_none_match.data(), if_none_match.size()), ',')) {
    // A proxy that packs the file marks its version as weak; for this question that is the same.
    const auto tag = absl::StripPrefix(absl::StripAsciiWhitespace(part), "W/");
    if (tag == file.etag || tag == "*") return true;
  }
  return false;
}

HttpResponse PageResponse(const PageFile& file, std::string_view if_none_match) {
  HttpResponse response{.headers = {{"ETag", file.etag},
                                    {"Cache-Control", "no-cache"},
                                    {"Content-Security-Policy", kPolicy},
                                    {"X-Content-Type-Options", "nosniff"},
                                    {"Referrer-Policy", "no-referrer"},
                                    {"Cross-Origin-Opener-Policy", "same-origin"},
                                    {"Cross-Origin-Resource-Policy", "same-origin"}},
                        .content_type = file.content_type};
  if (IsCurrent(file, if_none_match)) {
    response.status = 304;
  } else {
    response.body = std::string(file.content);
  }
  return response;
}

}  // namespace retroinfer::gateway
