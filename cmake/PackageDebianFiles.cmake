# Run by CPack after installation: what Debian wants of a package beside what `cmake --install` gives.
set(root "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr")
set(debian "${CMAKE_CURRENT_LIST_DIR}/../deploy/debian")
set(docs "${root}/share/doc/retroinfer-server")

# The licence's text is in every Debian system; `copyright` says which it is.
file(REMOVE "${docs}/LICENSE")
file(COPY "${debian}/copyright" DESTINATION "${docs}")
file(COPY "${debian}/changelog" DESTINATION "${docs}")
file(RENAME "${docs}/changelog" "${docs}/changelog.Debian")
file(MAKE_DIRECTORY "${root}/share/lintian/overrides")
file(COPY_FILE "${debian}/lintian-overrides" "${root}/share/lintian/overrides/retroinfer-server")
# Debian's zsh looks here.
file(MAKE_DIRECTORY "${root}/share/zsh/vendor-completions")
file(RENAME "${root}/share/zsh/site-functions/_retroinfer"
     "${root}/share/zsh/vendor-completions/_retroinfer")
file(REMOVE_RECURSE "${root}/share/zsh/site-functions")
file(GLOB pages "${root}/share/man/man1/*.1")
execute_process(COMMAND gzip -9nf ${pages} "${docs}/changelog.Debian" COMMAND_ERROR_IS_FATAL ANY)
