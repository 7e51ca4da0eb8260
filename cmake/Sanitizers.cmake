# Applies RETROINFER_SANITIZER to every target, generated code included.
if(RETROINFER_SANITIZER STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(RETROINFER_SANITIZER STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT RETROINFER_SANITIZER STREQUAL "none")
  message(FATAL_ERROR "RETROINFER_SANITIZER is '${RETROINFER_SANITIZER}': use none, address or thread")
endif()
if(NOT RETROINFER_SANITIZER STREQUAL "none")
  # Most of the time goes into compiling. A report needs functions and lines, but no variables; asserts
  # stay. The operations of the CPU are compiled at -O2 (gpu_worker/ops/CMakeLists.txt).
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Instrumented code makes GCC take variables for uninitialized that are not, as its manual says.
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
endif()
