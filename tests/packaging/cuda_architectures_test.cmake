# Which architectures a build is for, given the GPUs of the machine: cmake -P, no GPU needed.
include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/CudaArchitectures.cmake")

function(expect capabilities expected)
  retroinfer_cuda_architectures("${capabilities}" found)
  if(NOT found STREQUAL expected)
    message(FATAL_ERROR "GPUs of \"${capabilities}\": compiled for \"${found}\", not \"${expected}\"")
  endif()
endfunction()

expect("" "80-real;90a-real")
expect("9.0" "90a-real")
expect("9.0;9.0" "90a-real")
expect("8.0" "80-real")
expect("8.6;8.9" "80-real")
expect("9.0;8.0" "80-real;90a-real")
expect("12.0" "80-real;90a-real")
expect("9.0;[N/A]" "80-real;90a-real")
