# Writes the definition of kBuildRevision to OUTPUT, if that says something else: cmake -D OUTPUT=... -D SOURCE_DIR=...
# [-D REVISION=commit] -D TEMPLATE=... -P write_revision.cmake. Without REVISION git is asked; without history the
# commit is "unknown".
if(NOT REVISION)
  set(REVISION "unknown")
  find_package(Git QUIET)
  if(GIT_FOUND)
    execute_process(COMMAND "${GIT_EXECUTABLE}" rev-parse --short=12 HEAD
                    WORKING_DIRECTORY "${SOURCE_DIR}" OUTPUT_VARIABLE found
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
    if(result EQUAL 0)
      set(REVISION "${found}")
    endif()
  endif()
endif()
configure_file("${TEMPLATE}" "${OUTPUT}" @ONLY)
