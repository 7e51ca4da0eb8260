# retroinfer_proto_library(name path/to/file.proto [GRPC]): C++ code for one .proto, path from proto/.
function(retroinfer_proto_library name proto)
  cmake_parse_arguments(ARG "GRPC" "" "DEPS" ${ARGN})
  set(out "${CMAKE_BINARY_DIR}/generated")
  file(MAKE_DIRECTORY "${out}")
  string(REGEX REPLACE "\\.proto$" "" stem "${proto}")
  set(generated "${out}/${stem}.pb.cc" "${out}/${stem}.pb.h")
  set(plugin_args "")
  if(ARG_GRPC)
    list(APPEND generated "${out}/${stem}.grpc.pb.cc" "${out}/${stem}.grpc.pb.h")
    set(plugin_args "--grpc_out=${out}"
        "--plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>")
  endif()
  add_custom_command(
    OUTPUT ${generated}
    COMMAND protobuf::protoc "--proto_path=${CMAKE_SOURCE_DIR}/proto" "--cpp_out=${out}"
            ${plugin_args} "${proto}"
    DEPENDS "${CMAKE_SOURCE_DIR}/proto/${proto}"
    COMMENT "Generating C++ for ${proto}"
    VERBATIM)
  add_library(${name} STATIC ${generated})
  target_include_directories(${name} SYSTEM PUBLIC "${out}")
  target_link_libraries(${name} PUBLIC protobuf::libprotobuf ${ARG_DEPS})
  if(ARG_GRPC)
    target_link_libraries(${name} PUBLIC gRPC::grpc++)
  endif()
endfunction()
