#!/usr/bin/env bash
# Sets up, builds and runs every test. A second run is incremental. Arguments go to ctest.
# RETROINFER_PRESET=developer makes warnings errors.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/bootstrap.sh
preset=${RETROINFER_PRESET:-release}
# The tests set what they want the programs to take from the environment.
for name in $(compgen -e RETROINFER_); do unset "$name"; done
cmake --preset "$preset"
cmake --build --preset "$preset"
ctest --preset "$preset" "$@"
