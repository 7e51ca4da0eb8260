# Short forms for the three kinds of target that the project has.
include(CMakeParseArguments)

# Paths of this checkout stand in one header, not on every command line, so that a compiler cache serves
# several checkouts.
file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/generated/build_paths.h" @ONLY CONTENT
"#pragma once
#define RETROINFER_SOURCE_DIR \"@CMAKE_SOURCE_DIR@\"
#define RETROINFER_BINARY_DIR \"@CMAKE_BINARY_DIR@\"
")

# retroinfer_library(name SRCS a.cc b.cc DEPS lib...): a static library with the project's warnings.
# Without SRCS it is an interface library (headers only).
function(retroinfer_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  if(ARG_SRCS)
    add_library(${name} STATIC ${ARG_SRCS})
    target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE retroinfer_warnings)
    retroinfer_reuse_precompiled(${name} precompiled_library)
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

# retroinfer_program(name OUTPUT file-name COMPONENT part SRCS main.cc DEPS lib...): an installed
# executable (cmake/Install.cmake names the components).
function(retroinfer_program name)
  cmake_parse_arguments(ARG "" "OUTPUT;COMPONENT" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS} $<TARGET_OBJECTS:common_built_revision>)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} retroinfer_warnings)
  set_target_properties(${name} PROPERTIES
    OUTPUT_NAME "${ARG_OUTPUT}" RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${ARG_COMPONENT})
endfunction()

# retroinfer_test(name SRCS x_test.cc DEPS lib... [LABELS l...] [TIMEOUT s] [SERVICES] [SERIAL]): one gtest
# binary, which is one ctest test. The generated header build_paths.h tells it where the tree and the programs are.
# SERVICES: it starts services, which keep two processors busy, so it counts as two of ctest's jobs. SERIAL: it runs
# alone.
function(retroinfer_test name)
  cmake_parse_arguments(ARG "SERVICES;SERIAL" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest_main GTest::gmock
                                        retroinfer_warnings)
  retroinfer_reuse_precompiled(${name} precompiled_test)
  target_include_directories(${name} PRIVATE "${CMAKE_BINARY_DIR}/generated")
  add_test(NAME ${name} COMMAND ${name})
  if(RETROINFER_SANITIZER STREQUAL "thread")
    target_sources(${name} PRIVATE "${CMAKE_SOURCE_DIR}/tests/support/tsan_absl_sync.cc")
    target_link_libraries(${name} PRIVATE absl::synchronization absl::time ${CMAKE_DL_LIBS})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT RETROINFER_SANITIZER STREQUAL "none")
    math(EXPR ARG_TIMEOUT "5 * ${ARG_TIMEOUT}") # instrumented code is as much slower
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  if(ARG_SERVICES)
    set_tests_properties(${name} PROPERTIES PROCESSORS 2)
  endif()
  if(ARG_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# retroinfer_benchmark(name SRCS x_bench.cc DEPS lib...): a program under bench/, plus a ctest smoke
# run with RETROINFER_BENCH_SMOKE=1 in its environment, so that none rots.
function(retroinfer_benchmark name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS} $<TARGET_OBJECTS:common_built_revision>)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} retroinfer_warnings)
  target_include_directories(${name} PRIVATE "${CMAKE_BINARY_DIR}/generated")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bench")
  if(RETROINFER_BUILD_TESTS)
    add_test(NAME ${name}_smoke COMMAND ${name})
    set_tests_properties(${name}_smoke PROPERTIES TIMEOUT 300 LABELS bench
      ENVIRONMENT "RETROINFER_BENCH_SMOKE=1")
  endif()
endfunction()
