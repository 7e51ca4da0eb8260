# What GPUs a build is for.

# retroinfer_cuda_architectures(compute-capabilities out): the architectures to compile for, given those of the
# machine's GPUs as nvidia-smi tells them ("9.0;8.6"). Code for 80 also runs on 8.6 and 8.9; 90a has Hopper's own
# matrix instructions. Without GPUs, or with one that no architecture here is made for, all of them: as for packages.
function(retroinfer_cuda_architectures capabilities out)
  set(all "80-real;90a-real")
  set(wanted "")
  foreach(capability IN LISTS capabilities)
    if(capability MATCHES "^8\\.[0-9]+$")
      list(APPEND wanted "80-real")
    elseif(capability STREQUAL "9.0")
      list(APPEND wanted "90a-real")
    else()
      set(wanted ${all})
      break()
    endif()
  endforeach()
  if(wanted STREQUAL "")
    set(wanted ${all})
  endif()
  list(REMOVE_DUPLICATES wanted)
  list(SORT wanted)
  set(${out} "${wanted}" PARENT_SCOPE)
endfunction()

# retroinfer_find_compute_capabilities(out): those of the GPUs that this machine has; empty without any.
function(retroinfer_find_compute_capabilities out)
  set(${out} "" PARENT_SCOPE)
  find_program(RETROINFER_NVIDIA_SMI nvidia-smi)
  mark_as_advanced(RETROINFER_NVIDIA_SMI)
  if(NOT RETROINFER_NVIDIA_SMI)
    return()
  endif()
  execute_process(COMMAND "${RETROINFER_NVIDIA_SMI}" --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE capabilities RESULT_VARIABLE result ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT result EQUAL 0)
    return()
  endif()
  string(REGEX REPLACE "[ \r\n]+" ";" capabilities "${capabilities}")
  set(${out} "${capabilities}" PARENT_SCOPE)
endfunction()
