# `cpack -G DEB` in the build folder: one Debian package with everything that is installed. Its
# dependencies are those that dpkg-shlibdeps finds for the programs, so it belongs to the distribution
# that it was built on.
set(CPACK_PACKAGE_NAME retroinfer-server)
set(CPACK_PACKAGE_VENDOR "RetroInfer Server")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "LLM server that treats the KV cache as vector storage")
set(CPACK_PACKAGE_DESCRIPTION
"Serves Llama and Qwen checkpoints with contexts of up to a million tokens:
the KV lives in CPU memory as a clustered index, and each decode step
attends exactly to the few clusters that matter.
.
Two services, gRPC, Prometheus metrics; see README.md in the documentation.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_MONOLITHIC_INSTALL ON)
set(CPACK_PRE_BUILD_SCRIPTS "${CMAKE_SOURCE_DIR}/cmake/PackageDebianFiles.cmake")
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_GENERATOR DEB)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(RETROINFER_PACKAGE_MAINTAINER "RetroInfer Server <maintainers@retroinfer.example>" CACHE STRING
    "Who the package names as its maintainer")
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${RETROINFER_PACKAGE_MAINTAINER}")
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# The user of the services is made by sysusers.d.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "systemd-standalone-sysusers | systemd | systemd-sysusers")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
    "${CMAKE_SOURCE_DIR}/deploy/debian/conffiles;${CMAKE_SOURCE_DIR}/deploy/debian/postinst"
    "${CMAKE_SOURCE_DIR}/deploy/debian/prerm;${CMAKE_SOURCE_DIR}/deploy/debian/postrm")
include(CPack)
