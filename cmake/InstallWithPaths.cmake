# Run by `cmake --install`: completes the files of deploy/ that name installed paths, and installs them.
# Variables: CMAKE_INSTALL_PREFIX, and those that cmake/Install.cmake sets.
set(prefix "${CMAKE_INSTALL_PREFIX}")
if(prefix STREQUAL "/usr")
  set(SYSCONF_DIR "/etc")
else()
  set(SYSCONF_DIR "${prefix}/etc")
endif()
set(BIN_DIR "${prefix}/${RETROINFER_BIN_DIR}")
set(DATA_DIR "${prefix}/${RETROINFER_DATA_DIR}/retroinfer")
set(DOC_DIR "${prefix}/${RETROINFER_DATA_DIR}/doc/retroinfer-server")

# A folder of this run's own: two installations of one build folder may run at once.
string(RANDOM LENGTH 16 run)
set(RETROINFER_STAGING_DIR "${RETROINFER_STAGING_DIR}/${run}")

function(install_completed source destination name mode)
  set(staged "${RETROINFER_STAGING_DIR}/${name}")
  configure_file("${RETROINFER_SOURCE_DIR}/${source}" "${staged}" @ONLY)
  set(permissions OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  if(mode STREQUAL "program")
    list(APPEND permissions OWNER_EXECUTE GROUP_EXECUTE WORLD_EXECUTE)
  endif()
  file(INSTALL "${staged}" DESTINATION "${destination}" PERMISSIONS ${permissions})
endfunction()

if(RETROINFER_PART STREQUAL "config")
  foreach(name kv_store_service.conf gpu_worker.conf http_gateway.conf serve.conf)
    install_completed(deploy/config/${name}.in "${SYSCONF_DIR}/retroinfer" ${name} file)
  endforeach()
  # For keys; the units hand what lies in it to the worker.
  file(MAKE_DIRECTORY "${RETROINFER_STAGING_DIR}/credentials")
  file(INSTALL DESTINATION "${SYSCONF_DIR}/retroinfer" TYPE DIRECTORY
       FILES "${RETROINFER_STAGING_DIR}/credentials"
       DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
else()
  foreach(name retroinfer-store retroinfer-worker retroinfer-gateway retroinfer)
    install_completed(deploy/systemd/${name}.service.in "${prefix}/lib/systemd/system"
                      ${name}.service file)
  endforeach()
  install_completed(deploy/systemd/retroinfer-generator.in "${prefix}/lib/systemd/system-generators"
                    retroinfer-generator program)
  install_completed(deploy/systemd/retroinfer-server.sysusers.in "${prefix}/lib/sysusers.d"
                    retroinfer-server.conf file)
endif()
file(REMOVE_RECURSE "${RETROINFER_STAGING_DIR}")
