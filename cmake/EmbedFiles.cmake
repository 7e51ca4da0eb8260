# Writes the C++ source behind http_gateway/page/page_content.h, with the content of text files in it:
#   cmake -DOUTPUT=page_content.cc "-DFILES=a.html;b.js" -P EmbedFiles.cmake
set(entries "")
foreach(file IN LISTS FILES)
  file(READ "${file}" content)
  if(content MATCHES "\\)embedded\"")
    message(FATAL_ERROR "${file} holds the end of a literal")
  endif()
  get_filename_component(name "${file}" NAME)
  file(SHA256 "${file}" hash)
  string(APPEND entries "    {\"${name}\", \"${hash}\", R\"embedded(${content})embedded\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Made by cmake/EmbedFiles.cmake.
#include \"http_gateway/page/page_content.h\"

namespace retroinfer::gateway {

namespace {
constexpr PageContent kFiles[] = {
${entries}};
}  // namespace

std::span<const PageContent> PageContents() { return kFiles; }

}  // namespace retroinfer::gateway
")
