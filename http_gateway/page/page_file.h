// The page for people: a chat in the browser.
#pragma once

#include <string>
#include <string_view>

#include "http_gateway/http/http_message.h"

namespace retroinfer::gateway {

// One file of the page. They hold nothing that is secret and are served without the API key, since
// a browser has none when it opens a page; what the page then asks for needs it.
struct PageFile {
  std::string path;  // "/" or "/page/..."
  std::string content_type;
  std::string etag;  // with its quotes
  std::string_view content;
};

// Returns: null if the page has no such file.
const PageFile* FindPageFile(std::string_view path);

// Whether an If-None-Match header names this version of the file.
bool IsCurrent(const PageFile& file, std::string_view if_none_match);

// The file, or 304 if the browser has it. Browsers keep it and ask each time whether it is still
// the same one. A policy keeps the page from loading or sending anything elsewhere, from running
// what is not one of its own files, and other pages from showing it in a frame.
HttpResponse PageResponse(const PageFile& file, std::string_view if_none_match);

}  // namespace retroinfer::gateway
