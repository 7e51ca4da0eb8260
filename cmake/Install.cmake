# What `cmake --install` copies, by component, so that an image or a package can take a part:
#
#   worker, store, gateway, client   the programs gpu_worker, kv_store_service, http_gateway, retroinfer
#   license                 LICENSE; belongs to whatever is passed on
#   docs                    README, SECURITY, docs/ and the example document
#   protos                  the contracts, for clients in other languages
#   demo-model              models/needle
#   config                  example settings of the services, in etc/retroinfer
#   systemd                 units, the user that they run as, and the memory limits that follow the settings
#   monitoring              Prometheus' configuration and alerts, Grafana's dashboards, in share/retroinfer
#   manuals, completion     manual pages and shell completion, made from the programs' lists of options
#
# Programs get their component in retroinfer_program(). Paths are relative to the prefix that is given at
# installation (--prefix) rather than at configuration; with the prefix /usr, settings go to /etc.
set(RETROINFER_DOC_DIR "${CMAKE_INSTALL_DATADIR}/doc/retroinfer-server")

install(FILES LICENSE DESTINATION "${RETROINFER_DOC_DIR}" COMPONENT license)
install(FILES README.md SECURITY.md DESTINATION "${RETROINFER_DOC_DIR}" COMPONENT docs)
install(DIRECTORY docs DESTINATION "${RETROINFER_DOC_DIR}" COMPONENT docs
        FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.png")
install(FILES deploy/examples/document.txt DESTINATION "${RETROINFER_DOC_DIR}/examples"
        COMPONENT docs)
install(DIRECTORY proto/retroinfer DESTINATION "${CMAKE_INSTALL_DATADIR}/retroinfer/proto"
        COMPONENT protos FILES_MATCHING PATTERN "*.proto")
install(FILES models/needle/README.md models/needle/config.json models/needle/generation_config.json
              models/needle/model.safetensors models/needle/tokenizer.json
              models/needle/tokenizer_config.json
        DESTINATION "${CMAKE_INSTALL_DATADIR}/retroinfer/models/needle" COMPONENT demo-model)
install(DIRECTORY deploy/prometheus deploy/grafana DESTINATION "${CMAKE_INSTALL_DATADIR}/retroinfer"
        COMPONENT monitoring
        FILES_MATCHING PATTERN "*.yml" PATTERN "*.json")

# Made from what the programs themselves say of their options.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  set(manuals "${CMAKE_BINARY_DIR}/manuals")
  add_custom_command(
    OUTPUT "${manuals}/stamp"
    COMMAND Python3::Interpreter "${CMAKE_SOURCE_DIR}/deploy/manuals/make_manuals.py"
            "$<TARGET_FILE_DIR:retroinfer>" "${manuals}"
    COMMAND "${CMAKE_COMMAND}" -E touch "${manuals}/stamp"
    DEPENDS retroinfer gpu_worker kv_store_service http_gateway
            "${CMAKE_SOURCE_DIR}/deploy/manuals/make_manuals.py"
    COMMENT "Writing manual pages and shell completion"
    VERBATIM)
  add_custom_target(manuals ALL DEPENDS "${manuals}/stamp")
  install(DIRECTORY "${manuals}/man/" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT manuals)
  foreach(program retroinfer gpu_worker kv_store_service http_gateway)
    install(FILES "${manuals}/retroinfer.bash" RENAME ${program} COMPONENT completion
            DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
  endforeach()
  install(FILES "${manuals}/_retroinfer" COMPONENT completion
          DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
  install(FILES "${manuals}/retroinfer.fish" COMPONENT completion
          DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")
else()
  message(STATUS "Python 3 not found: no manual pages, no shell completion")
endif()

# Pages link to what they find in the source tree; installed ones to what is installed.
if(Python3_FOUND)
  foreach(part docs demo-model)
    install(CODE "execute_process(
      COMMAND \"${Python3_EXECUTABLE}\" \"${CMAKE_SOURCE_DIR}/deploy/manuals/link_docs.py\"
              \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}\"
      COMMAND_ERROR_IS_FATAL ANY)" COMPONENT ${part})
  endforeach()
endif()

# Files that name installed paths are completed when the prefix is known.
foreach(part config systemd)
  install(CODE "set(RETROINFER_SOURCE_DIR \"${CMAKE_SOURCE_DIR}\")
set(RETROINFER_STAGING_DIR \"${CMAKE_BINARY_DIR}/install/${part}\")
set(RETROINFER_PART ${part})
set(RETROINFER_BIN_DIR \"${CMAKE_INSTALL_BINDIR}\")
set(RETROINFER_DATA_DIR \"${CMAKE_INSTALL_DATADIR}\")" COMPONENT ${part})
  install(SCRIPT cmake/InstallWithPaths.cmake COMPONENT ${part})
endforeach()
