#!/bin/sh
# Runs in the build stage of the Containerfile: compiles the source around it and installs it in TREE.
# usage: compile.sh CUDA REVISION TREE
set -eu
cmake -S . -B /tmp/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DRETROINFER_ENABLE_CUDA="$1" \
  -DRETROINFER_BUILD_TESTS=OFF -DRETROINFER_BUILD_BENCHMARKS=OFF -DRETROINFER_REVISION="$2"
cmake --build /tmp/build --target gpu_worker kv_store_service http_gateway retroinfer
for component in worker store gateway client license; do
  DESTDIR=$3 cmake --install /tmp/build --prefix /usr --strip --component "$component"
done
