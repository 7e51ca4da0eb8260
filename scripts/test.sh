#!/usr/bin/env bash
# Sets up, builds and runs every test. A second run is incremental. Arguments go to ctest.
# RETROINFER_PRESET=developer makes warnings errors.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/bootstrap.sh
preset=${RETROINFER_PRESET:-release}
cmake --preset "$preset"
cmake --build --preset "$preset"
ctest --preset "$preset" "$@"
