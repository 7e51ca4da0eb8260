# The language standard, warnings and the compiler cache that every target gets.
include(GNUInstallDirs)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# For developers: compilers and libraries of other years warn of other things, which must not keep anyone
# from building. A build folder from before there was this option goes on as it was.
set(warnings_are_errors OFF)
if(DEFINED CACHE{RETROINFER_CCACHE} AND NOT DEFINED CACHE{RETROINFER_WERROR})
  set(warnings_are_errors ON)
endif()
option(RETROINFER_WERROR "Warnings of the compiler are errors" ${warnings_are_errors})

find_program(RETROINFER_CCACHE ccache)
if(RETROINFER_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}"
      CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros "${RETROINFER_CCACHE}")
endif()

# Warnings for the project's own code; generated code does not link this target.
add_library(retroinfer_warnings INTERFACE)
target_compile_options(retroinfer_warnings INTERFACE
  # Designated initialisers leave fields at their defaults on purpose.
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;$<$<BOOL:${RETROINFER_WERROR}>:-Werror>;-Wno-missing-field-initializers;-Wnon-virtual-dtor;-Woverloaded-virtual;-Wimplicit-fallthrough>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall;$<$<BOOL:${RETROINFER_WERROR}>:-Werror=all-warnings>>"
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)

# One include root: headers are named by their path from the top of the tree.
include_directories("${CMAKE_SOURCE_DIR}")
