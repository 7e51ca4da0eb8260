#!/usr/bin/env bash
# Lets real clients of OpenAI's API, and our own of gRPC, speak to `retroinfer serve` with the demo model, and puts a table
# of what worked into docs/use/clients.md. Installs the clients from PyPI into a folder of its own (1.5 GB), so it is for a
# developer's machine, not for CI. No client asks a model hub for anything.
# usage: tests/clients/run.sh [BIN_DIR, default build/release/bin] [VENV, default build/clients-venv] [OPTIONS of clients.py]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
bin=$(realpath "${1:-$root/build/release/bin}")
venv=${2:-$root/build/clients-venv}
shift $(($# < 2 ? $# : 2))
if [ ! -x "$venv/bin/aiperf" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet openai langchain-openai 'lm-eval[api]' aiperf grpcio protobuf
fi
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"$venv/bin/pip" install --quiet --no-deps --force-reinstall "$("$root/clients/python/build_wheel.sh" "$wheels")"
"$venv/bin/python" "$root/tests/clients/clients.py" "$bin" "$@"
