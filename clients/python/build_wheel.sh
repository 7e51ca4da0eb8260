#!/usr/bin/env bash
# Builds the wheel of the Python client, and prints its path. The code of the protos is made here, by protoc and
# gRPC's plugin for Python. Downloads nothing.
# usage: clients/python/build_wheel.sh [FOLDER for the wheel, default build/python]
# PYTHON: an interpreter with setuptools and wheel, default /usr/bin/python3 (Debian's, with python3-setuptools and
# python3-wheel).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-/usr/bin/python3}
mkdir -p "${1:-$root/build/python}"
out=$(cd "${1:-$root/build/python}" && pwd)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

"$python" -c 'import setuptools, wheel' 2> /dev/null || {
  echo "build_wheel.sh: $python has no setuptools and wheel (Debian: python3-setuptools, python3-wheel)" >&2
  exit 1
}
command -v protoc > /dev/null || { echo "build_wheel.sh: protoc is missing (Debian: protobuf-compiler)" >&2; exit 1; }
plugin=$(command -v grpc_python_plugin) || {
  echo "build_wheel.sh: grpc_python_plugin is missing (Debian: protobuf-compiler-grpc)" >&2
  exit 1
}
cp -r "$here/src" "$here/pyproject.toml" "$here/README.md" "$stage"
sed -n "s/^project(RetroInferServer VERSION \([0-9.]*\).*/\1/p" "$root/CMakeLists.txt" > "$stage/VERSION"
[ -s "$stage/VERSION" ] || { echo "build_wheel.sh: CMakeLists.txt names no version" >&2; exit 1; }
cd "$root/proto"
protoc -I. "--python_out=$stage/src" "--pyi_out=$stage/src" "--grpc_python_out=$stage/src" \
  "--plugin=protoc-gen-grpc_python=$plugin" \
  retroinfer/generation/v1/*.proto retroinfer/rpc/v1/error_details.proto
for folder in generation generation/v1 rpc rpc/v1; do touch "$stage/src/retroinfer/$folder/__init__.py"; done
cd "$stage"
"$python" -c '
import sys
from setuptools import build_meta
print(build_meta.build_wheel(sys.argv[1]))' "$out" > "$stage/log" 2>&1 || { cat "$stage/log" >&2; exit 1; }
echo "$out/$(tail -1 "$stage/log")"
