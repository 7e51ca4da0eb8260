# Everything comes from the distribution's packages; scripts/bootstrap.sh installs them.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)  # the threads of oneDNN
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)  # writes JSON
find_package(simdjson CONFIG REQUIRED)  # reads it
find_package(CLI11 CONFIG REQUIRED)
find_package(tomlplusplus CONFIG REQUIRED)  # used as headers alone: the library is built with exceptions
find_package(spdlog CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Boost 1.74 REQUIRED)  # headers: Asio and Beast
find_package(RocksDB CONFIG REQUIRED)
find_package(dnnl CONFIG REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(NGHTTP2 REQUIRED IMPORTED_TARGET libnghttp2)
pkg_check_modules(LIBEDIT REQUIRED IMPORTED_TARGET libedit)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
if(RETROINFER_BUILD_TESTS)
  find_package(GTest CONFIG REQUIRED)
endif()
if(RETROINFER_BUILD_BENCHMARKS)
  find_package(benchmark CONFIG REQUIRED)
endif()
