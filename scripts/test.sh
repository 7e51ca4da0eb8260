#!/usr/bin/env bash
# Sets up, builds and runs every test. A second run is incremental. Arguments go to ctest.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/bootstrap.sh
cmake --preset release
cmake --build --preset release
ctest --preset release "$@"
