# Precompiled headers: most of what a small file costs is parsing the headers of the C++ library, absl and
# GoogleTest, which are parsed once for all files that are compiled alike: libraries (position independent), and
# tests (programs). Files stay complete without them: RETROINFER_PRECOMPILED_HEADERS=OFF builds the same. GCC alone:
# it takes a precompiled file for what it is whenever it was made, as a compiler cache needs.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(precompiled_by_default ON)
else()
  set(precompiled_by_default OFF)
endif()
option(RETROINFER_PRECOMPILED_HEADERS "Parse the headers that most files include once" ${precompiled_by_default})

# Lets the files of the target NAME use what OWNER has precompiled.
function(retroinfer_reuse_precompiled name owner)
  if(RETROINFER_PRECOMPILED_HEADERS)
    target_precompile_headers(${name} REUSE_FROM ${owner})
  endif()
endfunction()

if(NOT RETROINFER_PRECOMPILED_HEADERS)
  return()
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # -pthread: a macro of it must be the same for all. -fpch-preprocess: names the precompiled file where the cache
  # looks for it.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-pthread> $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  # Seen through a precompiled header, string literals lose their sizes in GCC 12's eyes.
  target_compile_options(retroinfer_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-error=array-bounds>)
endif()

set(retroinfer_library_headers
  <algorithm> <atomic> <cmath> <cstdint> <cstring> <deque> <filesystem> <fstream> <functional> <limits> <map>
  <memory> <mutex> <numeric> <optional> <random> <set> <span> <sstream> <string> <string_view> <thread>
  <unordered_map> <utility> <variant> <vector>
  absl/container/flat_hash_map.h absl/container/flat_hash_set.h absl/status/status.h absl/status/statusor.h
  absl/strings/str_cat.h absl/strings/str_format.h absl/strings/str_join.h absl/synchronization/mutex.h
  absl/time/clock.h absl/time/time.h)
set(retroinfer_test_headers ${retroinfer_library_headers} gmock/gmock.h gtest/gtest.h)

# Lists HEADERS of the target NAME for C++ alone: CUDA has no such thing.
function(retroinfer_precompile name)
  set(headers "")
  foreach(header IN LISTS ARGN)
    if(NOT header MATCHES "^<")
      set(header "<${header}>")
    endif()
    string(REPLACE ">" "$<ANGLE-R>" header "${header}")
    list(APPEND headers "$<$<COMPILE_LANGUAGE:CXX>:${header}>")
  endforeach()
  target_precompile_headers(${name} PRIVATE ${headers})
endfunction()

file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/generated/precompiled.cc" CONTENT "int main() {}\n")
add_library(precompiled_library OBJECT EXCLUDE_FROM_ALL "${CMAKE_BINARY_DIR}/generated/precompiled.cc")
target_link_libraries(precompiled_library PRIVATE absl::statusor absl::synchronization absl::flat_hash_map
                                                  absl::flat_hash_set absl::str_format Threads::Threads)
retroinfer_precompile(precompiled_library ${retroinfer_library_headers})
if(RETROINFER_BUILD_TESTS)
  add_executable(precompiled_test EXCLUDE_FROM_ALL "${CMAKE_BINARY_DIR}/generated/precompiled.cc")
  target_link_libraries(precompiled_test PRIVATE GTest::gtest_main GTest::gmock absl::statusor absl::synchronization
                                                 absl::flat_hash_map absl::flat_hash_set absl::str_format)
  retroinfer_precompile(precompiled_test ${retroinfer_test_headers})
endif()
