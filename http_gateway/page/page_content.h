// The files under web/, which the build puts into the program.
#pragma once

#include <span>
#include <string_view>

namespace retroinfer::gateway {

struct PageContent {
  std::string_view name;    // of the file, without its folder
  std::string_view sha256;  // 64 digits, of the content
  std::string_view content;
};

std::span<const PageContent> PageContents();

}  // namespace retroinfer::gateway
