# What `cmake --install` copies, by component, so that an image or a package can take a part:
#
#   worker, store, client   the programs gpu_worker, kv_store_service, retroinfer
#   license                 LICENSE; belongs to whatever is passed on
#   docs                    README, docs/ and the example document
#   protos                  the contracts, for clients in other languages
#   demo-model              models/needle
#   config                  example settings of the services, in etc/retroinfer
#
# Programs get their component in retroinfer_program(). Paths are relative to the prefix that is given at
# installation (--prefix) rather than at configuration; with the prefix /usr, settings go to /etc.
set(RETROINFER_DOC_DIR "${CMAKE_INSTALL_DATADIR}/doc/retroinfer-server")

install(FILES LICENSE DESTINATION "${RETROINFER_DOC_DIR}" COMPONENT license)
install(FILES README.md DESTINATION "${RETROINFER_DOC_DIR}" COMPONENT docs)
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

# Files that name installed paths are completed when the prefix is known.
foreach(part config)
  install(CODE "set(RETROINFER_SOURCE_DIR \"${CMAKE_SOURCE_DIR}\")
set(RETROINFER_STAGING_DIR \"${CMAKE_BINARY_DIR}/install/${part}\")
set(RETROINFER_PART ${part})
set(RETROINFER_BIN_DIR \"${CMAKE_INSTALL_BINDIR}\")
set(RETROINFER_DATA_DIR \"${CMAKE_INSTALL_DATADIR}\")" COMPONENT ${part})
  install(SCRIPT cmake/InstallWithPaths.cmake COMPONENT ${part})
endforeach()
